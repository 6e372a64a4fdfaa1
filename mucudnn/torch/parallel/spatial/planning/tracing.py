"""The work of a rank, traced on the meta device, where a divided model computes shapes only.

It needs no process group, because the operators that exchange rows have an implementation for shapes.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from mucudnn.errors import ArgumentTypeError, UsageError
from mucudnn.torch.parallel.spatial.divided import Divided, Division, local_shape, logical_tensors
from mucudnn.torch.parallel.spatial.exchange.exchange import Owners
from mucudnn.torch.parallel.spatial.planning.following import arguments_over
from mucudnn.torch.tracing.saved import tensors_in
from mucudnn.torch.tracing.trace import errors_of_a_run_without_data
from mucudnn.torch.windows.spans import convolved_size, paired, reach, transfers

NAMES = ("depth", "height", "width")


@dataclass
class Layer:
    """A convolution as a rank runs it, with everything before the next convolution.

    `x` and `y` are shapes of whole tensors, and `sizes` the numbers of ranks over which each spatial axis of
    the input is divided. `arrived` are those with which the model passes the input, before it is divided
    again. The other figures count up to the next convolution: the bytes that autograd saves, the bytes that
    other operators read and write, and the messages and bytes from other ranks.
    """

    name: str
    module: Any
    x: tuple[int, ...]
    sizes: tuple[int, ...]
    arrived: tuple[int, ...]
    y: tuple[int, ...] = ()
    saved: int = 0
    moved: int = 0
    messages: int = 0
    received: int = 0


@dataclass
class Part:
    """The convolutions of a model in order, up to the first operator that refused divided tensors."""

    layers: list[Layer] = field(default_factory=list)
    refusal: ArgumentTypeError | UsageError | None = None


def whole_or_part(shape: Sequence[int], sizes: Sequence[int], dtype: torch.dtype) -> Any:
    """Return an input without data: a rank's part of it, or the whole if a single rank has it.

    The rank has a full part, and neighbours on both sides if there are three ranks or more.
    """
    axes = []
    for axis, (rows, size) in enumerate(zip(shape[2:], sizes, strict=True), 2):
        if size > 1:
            rank = int(size > 2 or rows % size == 0)
            name = NAMES[axis - 2]
            axes.append((axis, Owners(f"{name} {size}", rank, size, name)))
    division = Division(tuple(axes), (), "spatial", "caller", None)
    local = torch.empty(local_shape(shape, division), dtype=dtype, device="meta")
    return Divided(local, shape, division) if axes else local


def trace_part(
    model: nn.Module, shape: Sequence[int], sizes: Sequence[int], dtype: torch.dtype, training: bool
) -> Part:
    """Run a model without data forward, with each spatial axis divided over `sizes` ranks.

    The input of a convolution that arrives whole is divided again.
    """
    x = whole_or_part(shape, sizes, dtype)
    counter = _Counter(model, x.division if isinstance(x, Divided) else None)
    handles = [
        handle
        for module in model.modules()
        if isinstance(module, nn.modules.conv._ConvNd)
        for handle in (
            module.register_forward_pre_hook(counter.begin, with_kwargs=True),
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
    and everything that operators hold meanwhile. `model` and `x` have no data. Raises UsageError for a model
    that cannot run without data.
    """
    live = _Live([*model.parameters(), *model.buffers(), *tensors_in(x)])
    try:
        with errors_of_a_run_without_data(), torch.set_grad_enabled(training), live:
            outputs = [y for y in tensors_in(model(x)) if y.requires_grad]
            if outputs:
                torch.autograd.backward(outputs, [torch.empty_like(y) for y in outputs])
    finally:
        for parameter in model.parameters():
            parameter.grad = None
    return live.peak


def geometry_of(module: Any, i: int) -> tuple[int, int, int]:
    """Return stride, padding and reach of a convolution along one axis."""
    span = reach(module.kernel_size[i], module.dilation[i])
    if isinstance(module.padding, str):
        return module.stride[i], (span - 1) // 2 if module.padding == "same" else 0, span
    return module.stride[i], module.padding[i], span


def _rows_read(module: Any, i: int, layer: Layer) -> int:
    """Return the rows of an axis that a convolution read, which its result shows if a module pads it."""
    (stride, pad, span), rows, outputs = geometry_of(module, i), layer.x[i + 2], layer.y[i + 2]
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return rows
    if module.padding == "same" or convolved_size(rows, (pad, pad), stride, span) == outputs:
        return rows
    return (outputs - 1) * stride + span - 2 * pad


def _ranks(x: Any) -> tuple[int, ...]:
    """Return the numbers of ranks over which the spatial axes of a tensor are divided."""
    return tuple(x.owners(axis).ranks if isinstance(x, Divided) else 1 for axis in range(2, x.dim()))


class _Live(TorchDispatchMode):
    """A mode that follows the bytes of all storages that are alive."""

    def __init__(self, own: Iterable[Tensor]) -> None:
        super().__init__()
        self._known: dict[int, tuple[StorageWeakRef, int]] = {}
        self.peak = 0
        self._add(own)

    def _add(self, tensors: Iterable[Tensor]) -> None:
        self._known = {key: known for key, known in self._known.items() if not known[0].expired()}
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self._known:
                self._known[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.peak = max(self.peak, sum(size for _, size in self._known.values()))

    def __torch_dispatch__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        self._add(tensors_in(result))
        return result


class _Counter(TorchDispatchMode):
    """A mode that counts the bytes and messages of each convolution and of the operators after it."""

    def __init__(self, model: nn.Module, division: Division | None) -> None:
        super().__init__()
        self.layers: list[Layer] = []
        self._division = division
        self._before = Layer("", None, (), (), ())
        self._names = {module: name for name, module in model.named_modules()}
        self._own = {p.untyped_storage()._cdata for p in model.parameters()}
        self._saved: dict[int, Tensor] = {}  # kept alive, so that no two storages have the same address

    @property
    def _now(self) -> Layer:
        return self.layers[-1] if self.layers else self._before

    def begin(self, module: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Begin a convolution, and return its arguments with its input divided."""
        arrived = _ranks(logical_tensors((args, kwargs))[0])
        if self._division is not None:
            args, kwargs = arguments_over(args, kwargs, self._division, list(self._division.by_name))
        x = logical_tensors((args, kwargs))[0]
        # The first convolution also counts what came before it.
        layer = Layer("", None, (), (), ()) if self.layers else self._before
        self.layers.append(
            replace(
                layer,
                name=self._names[module],
                module=module,
                x=tuple(x.shape),
                sizes=_ranks(x),
                arrived=arrived,
            )
        )
        return args, kwargs

    def end(self, module: Any, args: tuple[Any, ...], y: Any) -> None:
        """Note the result of a convolution, and the input that a module pads itself before it convolves."""
        layer = self._now
        layer.y = tuple(logical_tensors(y)[0].shape)
        layer.x = (*layer.x[:2], *(_rows_read(module, i, layer) for i in range(len(layer.y) - 2)))

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
        inputs, outputs = tensors_in((args, kwargs)), tensors_in(result)
        storages = {x.untyped_storage()._cdata for x in inputs}
        is_view = not function._schema.is_mutable and any(
            y.untyped_storage()._cdata in storages for y in outputs
        )
        if "convolution" not in name and not is_view:
            now.moved += sum(x.numel() * x.element_size() for x in (*inputs, *outputs))
        return result
