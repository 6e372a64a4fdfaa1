"""The costs of each operation of a traced model, measured on this machine."""

import copy
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_map

from mucudnn.torch.parallel.pipeline.stages import RUNS, time_run
from mucudnn.torch.tracing.saved import tensors_in


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
        runs = [self._run(n, module) for _ in range(1 + RUNS)]  # the first run warms up
        forward, backward = (
            statistics.median(times) for times in zip(*(r[0] for r in runs[1:]), strict=True)
        )
        _, (saved, base, changes), value = runs[-1]
        self.costs[n.name] = NodeCost(forward, backward, saved, _bytes_of(value), base, changes)
        return value

    def _run(
        self, n: fx.Node, module: nn.Module | None
    ) -> tuple[tuple[float, float], tuple[dict[str, int], str | None, frozenset[str]], Any]:
        """Run an operation. Return its milliseconds, what `NodeCost` says of its tensors, and its value."""
        leaves: list[Tensor] = [] if module is None else list(module.parameters())
        names: dict[int, str | None] = {}  # the keys are storages; weights have None
        inputs: list[tuple[str, Tensor]] = []

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
                inputs.append((node.name, entered))
                return entered

            return tree_map(take, self.env[node])

        def forward() -> Any:
            return (
                module(*args, **kwargs) if module is not None else getattr(self, n.op)(n.target, args, kwargs)
            )

        def backward(value: Any) -> None:
            outputs = [tensor for tensor in tensors_in(value) if tensor.requires_grad]
            trained = [leaf for leaf in leaves if leaf.requires_grad]
            if outputs and trained:
                torch.autograd.grad(outputs, trained, list(map(torch.zeros_like, outputs)), allow_unused=True)

        entered = {node: enter(node) for node in n.all_input_nodes}
        args, kwargs = fx.map_arg((n.args, n.kwargs), entered.__getitem__)
        names.update({_storage_of(leaf): None for leaf in leaves if isinstance(leaf, nn.Parameter)})
        times, kept, value = time_run(forward, backward, self._device)
        results = list(map(_storage_of, tensors_in(value)))
        base = next((names[storage] for storage in results if names.get(storage) is not None), None)
        changes = frozenset(name for name, tensor in inputs if tensor._version)
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
        return times, (saved, base, changes), detached

    def _real(self, value: Any) -> Any:
        """Return a module or a tensor with memory on the device."""
        if isinstance(value, Tensor):
            return torch.zeros_like(value, device=self._device) if value.is_meta else value
        if any(t.is_meta for t in (*value.parameters(), *value.buffers())):
            return copy.deepcopy(value).to_empty(device=self._device)
        return value


def _storage_of(tensor: Tensor) -> int:
    return int(tensor.untyped_storage().data_ptr())


def _bytes_of(value: Any) -> int | None:
    return value.numel() * value.element_size() if isinstance(value, Tensor) else None
