"""The work of one rank: a divided model runs on the meta device, which computes shapes alone.

No process group is needed: the operators that exchange rows have an implementation for shapes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mucudnn.errors import ArgumentTypeError, UsageError
from mucudnn.torch.parallel.spatial.divided import Divided, Division, local_shape
from mucudnn.torch.parallel.spatial.exchange.exchange import Owners
from mucudnn.torch.parallel.spatial.windows import paired, transfers
from mucudnn.torch.tracing.trace import errors_of_a_run_without_data

NAMES = ("depth", "height", "width")


@dataclass
class Layer:
    """A convolution as a rank runs it, and what comes before the next one.

    `x` and `y` are shapes of whole tensors, `sizes` the ranks over which each spatial axis of the input is
    divided. The other figures hold up to the next convolution: bytes that autograd saves, bytes that other
    operators read and write, and messages and bytes from other ranks.
    """

    name: str
    module: Any
    x: tuple[int, ...]
    sizes: tuple[int, ...]
    y: tuple[int, ...] = ()
    saved: int = 0
    moved: int = 0
    messages: int = 0
    received: int = 0


@dataclass
class Part:
    """The convolutions of a model in their order, up to the first operator that refused divided tensors."""

    layers: list[Layer] = field(default_factory=list)
    refusal: ArgumentTypeError | UsageError | None = None


def whole_or_part(shape: Sequence[int], sizes: Sequence[int], dtype: torch.dtype) -> Any:
    """Return an input without data: the part of one rank of those that share it, or the whole for one rank.

    It is a rank with a full part, and with neighbours on both sides if there are three ranks or more.
    """
    axes = []
    for axis, (rows, size) in enumerate(zip(shape[2:], sizes, strict=True), 2):
        if size > 1:
            rank = int(size > 2 or rows % size == 0)
            axes.append((axis, Owners(f"{NAMES[axis - 2]} {size}", rank, size)))
    names = tuple(NAMES[axis - 2] for axis, _ in axes)
    division = Division(tuple(axes), (), "spatial", "caller", None, names)
    local = torch.empty(local_shape(shape, division), dtype=dtype, device="meta")
    return Divided(local, shape, division) if axes else local


def trace_part(
    model: nn.Module, shape: Sequence[int], sizes: Sequence[int], dtype: torch.dtype, training: bool
) -> Part:
    """Run a model without data forward, divided over so many ranks along each spatial axis."""
    counter = _Counter(model)
    x = whole_or_part(shape, sizes, dtype)
    handles = [
        handle
        for module in model.modules()
        if isinstance(module, nn.modules.conv._ConvNd)
        for handle in (
            module.register_forward_pre_hook(counter.begin),
            module.register_forward_hook(counter.end),
        )
    ]
    hooks = torch.autograd.graph.saved_tensors_hooks(counter.pack, lambda tensor: tensor)
    try:
        with torch.set_grad_enabled(training), hooks, counter:
            model(x)
    except (ArgumentTypeError, UsageError) as error:
        if not isinstance(x, Divided):
            raise
        return Part(counter.layers[:-1], error)
    finally:
        for handle in handles:
            handle.remove()
    return Part(counter.layers)


def peak_bytes(model: nn.Module, x: Any, training: bool) -> int:
    """Return the most bytes that a rank holds during a step, without workspaces.

    They are parameters, buffers, gradients, the rank's part of the input, saved tensors with received rows,
    and all that operators hold meanwhile. `model` and `x` are without data. Raises UsageError for a model
    that cannot run so.
    """
    own = [*model.parameters(), *model.buffers(), *(one for one in tree_leaves(x) if isinstance(one, Tensor))]
    live = _Live(own)
    try:
        with errors_of_a_run_without_data(), torch.set_grad_enabled(training), live:
            found = [one for one in tree_leaves(model(x)) if isinstance(one, Tensor) and one.requires_grad]
            if found:
                torch.autograd.backward(found, [torch.empty_like(one) for one in found])
    finally:
        for parameter in model.parameters():
            parameter.grad = None
    return live.peak


class _Live(TorchDispatchMode):
    """A mode that follows the bytes of all storages that are alive."""

    def __init__(self, own: Iterable[Tensor]) -> None:
        super().__init__()
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0
        self._add(own)

    def _add(self, tensors: Iterable[Tensor]) -> None:
        self._known = {key: one for key, one in self._known.items() if not one[0].expired()}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._known:
                self._known[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, sum(size for _, size in self._known.values()))

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        self._add(one for one in tree_leaves(result) if isinstance(one, Tensor))
        return result


class _Counter(TorchDispatchMode):
    """A mode that counts what each convolution and the operators after it take."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.layers: list[Layer] = []
        self._before = Layer("", None, (), ())
        self._names = {module: name for name, module in model.named_modules()}
        self._own = {p.untyped_storage()._cdata for p in model.parameters()}
        self._saved: dict[int, Tensor] = {}  # alive, so that no two storages have the same address

    @property
    def _now(self) -> Layer:
        return self.layers[-1] if self.layers else self._before

    def begin(self, module: Any, args: tuple[Any, ...]) -> None:
        """Begin a convolution."""
        x = args[0]
        sizes = [x.owners(a).ranks if isinstance(x, Divided) else 1 for a in range(2, x.dim())]
        layer = Layer(self._names[module], module, tuple(x.shape), tuple(sizes))
        if not self.layers:
            first = self._before
            layer.saved, layer.moved = first.saved, first.moved
            layer.messages, layer.received = first.messages, first.received
        self.layers.append(layer)

    def end(self, module: Any, args: tuple[Any, ...], y: Any) -> None:
        """Note the result of a convolution."""
        self._now.y = tuple(y.shape)

    def pack(self, tensor: Tensor) -> Tensor:
        """Count a storage that autograd saves, once."""
        storage = tensor.untyped_storage()
        if storage._cdata not in self._saved.keys() | self._own:
            self._saved[storage._cdata] = tensor
            self._now.saved += storage.nbytes()
        return tensor

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        name, now = function._schema.name, self._now
        if name == "mucudnn::window":
            x, axis, parts, windows, index, *_ = args
            _, received = transfers(paired(parts), paired(windows), index)
            others = [span.size for rank, span in enumerate(received) if rank != index and span.size]
            now.messages += len(others)
            now.received += sum(others) * x.element_size() * (x.numel() // max(x.size(axis), 1))
        if name == "mucudnn::spatial_sum":  # a ring sends each sum twice
            ranks = [int(group.split()[1]) for group in args[1].split(",")]
            now.messages += sum(2 * (count - 1) for count in ranks)
            now.received += len(ranks) * 2 * args[0].numel() * args[0].element_size()
        given = [one for one in tree_leaves((args, kwargs)) if isinstance(one, Tensor)]
        found = [one for one in tree_leaves(result) if isinstance(one, Tensor)]
        storages = {one.untyped_storage()._cdata for one in given}
        is_view = not function._schema.is_mutable and any(
            one.untyped_storage()._cdata in storages for one in found
        )
        if "convolution" not in name and not is_view:
            now.moved += sum(one.numel() * one.element_size() for one in (*given, *found))
        return result
