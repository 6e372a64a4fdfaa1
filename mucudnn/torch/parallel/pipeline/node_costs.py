"""The costs of each operation of a traced model, measured on this machine."""

import copy
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_map

RUNS = 3


@dataclass(frozen=True)
class NodeCost:
    """The costs of an operation.

    Attributes:
        forward_ms: milliseconds of the forward pass.
        backward_ms: milliseconds of the backward pass.
        saved: the bytes that autograd saves, by the name of the value; other tensors have names of their own.
        output: the bytes of the output; None if it is not a tensor, and cannot be sent.
        base: the name of an input in whose memory the output is; None if the output has its own memory.
        changes: the names of the inputs that the operation changes in place.
    """

    forward_ms: float
    backward_ms: float
    saved: Mapping[str, int]
    output: int | None
    base: str | None = None
    changes: frozenset[str] = frozenset()


def measure_nodes(model: nn.Module, graph: fx.Graph, inputs: list[Tensor]) -> dict[str, NodeCost]:
    """Return the costs of all operations and inputs of a graph, by name.

    Each operation runs alone, forward and backward, so a model on the meta device needs the memory of its
    largest operation only. The state of modules and of random numbers changes.
    """
    measurement = _Measurement(model, graph, inputs[0].device)
    with torch.enable_grad():
        measurement.run(*inputs)
    return measurement.costs


class _Measurement(fx.Interpreter):
    """A run of a graph that measures each operation. The times are the median of `RUNS` runs."""

    def __init__(self, model: nn.Module, graph: fx.Graph, device: torch.device) -> None:
        super().__init__(model, graph=graph)
        self._device = device
        self.costs: dict[str, NodeCost] = {}

    def run_node(self, n: fx.Node) -> Any:
        """Return the value of a node."""
        if n.op == "output":
            return None
        if n.op == "get_attr":
            return self._real(self.fetch_attr(str(n.target)))
        if n.op == "placeholder":
            value = super().run_node(n)
            self.costs[n.name] = NodeCost(0.0, 0.0, {}, _bytes_of(value))
            return value
        module = self._real(self.fetch_attr(str(n.target))) if n.op == "call_module" else None
        function = module or (_method(str(n.target)) if n.op == "call_method" else n.target)
        runs = []
        for _ in range(1 + RUNS):  # the first run warms up
            runs.append(self._run(n, function, list(module.parameters()) if module else []))
        forward, backward = (
            statistics.median(times) for times in zip(*(r[0] for r in runs[1:]), strict=True)
        )
        _, (saved, base, changes), value = runs[-1]
        self.costs[n.name] = NodeCost(forward, backward, saved, _bytes_of(value), base, changes)
        return value

    def _run(
        self, n: fx.Node, function: Any, parameters: list[nn.Parameter]
    ) -> tuple[tuple[float, float], tuple[dict[str, int], str | None, frozenset[str]], Any]:
        """Run an operation. Return its milliseconds, what `NodeCost` says of its tensors, and its value."""
        leaves: list[Tensor] = list(parameters)
        names: dict[int, str | None] = {}  # the keys are storages; weights have None
        inputs: list[tuple[str, Tensor, int]] = []

        def enter(node: fx.Node) -> Any:
            if node.op == "get_attr":
                weight = self.env[node]
                leaves.append(weight)
                return weight if isinstance(weight, nn.Parameter) else weight.clone()

            def take(value: Any) -> Any:
                if not isinstance(value, Tensor):
                    return value
                leaf = value.detach().requires_grad_(value.requires_grad)
                leaves.append(leaf)
                entered = leaf.clone()  # may change in place
                names[_storage_of(entered)] = node.name
                inputs.append((node.name, entered, entered._version))
                return entered

            return tree_map(take, self.env[node])

        entered = {node: enter(node) for node in n.all_input_nodes}
        args, kwargs = fx.map_arg((n.args, n.kwargs), entered.__getitem__)
        names.update({_storage_of(leaf): None for leaf in leaves if isinstance(leaf, nn.Parameter)})
        kept: list[Tensor] = []

        def count(tensor: Tensor) -> Tensor:
            kept.append(tensor)
            return tensor

        start = self._now()
        with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
            value = function(*args, **kwargs)
        middle = self._now()
        outputs = [t for t in tree_leaves(value) if isinstance(t, Tensor) and t.requires_grad]
        trained = [leaf for leaf in leaves if isinstance(leaf, Tensor) and leaf.requires_grad]
        if outputs and trained:
            zeros = [torch.zeros_like(output) for output in outputs]
            torch.autograd.grad(outputs, trained, zeros, allow_unused=True)
        end = self._now()
        results = [_storage_of(tensor) for tensor in tree_leaves(value) if isinstance(tensor, Tensor)]
        base = next((names[storage] for storage in results if names.get(storage) is not None), None)
        changes = frozenset(name for name, tensor, version in inputs if tensor._version > version)
        for storage in results:
            names.setdefault(storage, n.name)
        saved = {}
        for number, tensor in enumerate(kept):
            name = names.setdefault(_storage_of(tensor), f"{n.name}:{number}")
            if name is not None:
                saved[name] = tensor.untyped_storage().nbytes()
        detached = tree_map(
            lambda t: t.detach().requires_grad_(t.requires_grad) if isinstance(t, Tensor) else t, value
        )
        return ((middle - start) * 1e3, (end - middle) * 1e3), (saved, base, changes), detached

    def _real(self, value: Any) -> Any:
        """Return a module or a tensor with memory on the device."""
        if isinstance(value, Tensor):
            return torch.zeros_like(value, device=self._device) if value.is_meta else value
        if any(t.is_meta for t in (*value.parameters(), *value.buffers())):
            return copy.deepcopy(value).to_empty(device=self._device)
        return value

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()


def _method(name: str) -> Callable[..., Any]:
    return lambda value, *args, **kwargs: getattr(value, name)(*args, **kwargs)


def _storage_of(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _bytes_of(value: Any) -> int | None:
    return value.numel() * value.element_size() if isinstance(value, Tensor) else None
