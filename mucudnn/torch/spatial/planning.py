"""`plan`: choose the mesh and the place to gather, from the costs of the parts of each convolution."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from mucudnn import settings
from mucudnn.arrays.call import Call, LogListener, geometry, limit_of
from mucudnn.arrays.devices import device_named
from mucudnn.costs.cache import Cache
from mucudnn.errors import MucudnnError, NothingFitsError, UsageError
from mucudnn.measuring.bench import Bench
from mucudnn.plans.decide import Limits, decide
from mucudnn.plans.optimizer import benchmark
from mucudnn.plans.spatial_plan import SpatialCandidate, SpatialLayer, SpatialPlan
from mucudnn.problems.kernels import PASSES, Kernel
from mucudnn.sizes import format_size, parse_limit
from mucudnn.torch.spatial.divided import Divided
from mucudnn.torch.spatial.windows import (
    Span,
    factorisations,
    parts,
    pieces,
    product,
    reach,
    sliding,
    transfers,
    transposed,
    transposed_size,
    windows_of,
)

_NAMES = ("depth", "height", "width")
_TYPES = {torch.float32: "f32", torch.float64: "f64", torch.float16: "f16", torch.bfloat16: "bf16"}
Time = Callable[[Kernel], float]


@dataclass(frozen=True)
class Link:
    """The connection between two ranks: seconds for a message, and bytes a second."""

    latency: float
    bandwidth: float

    def __post_init__(self) -> None:
        if self.latency < 0 or not self.bandwidth > 0:
            raise UsageError(f"{self}: a latency cannot be negative, and a bandwidth is above 0")

    def time_ms(self, messages: int, size: float) -> float:
        """Return the milliseconds of messages that carry a number of bytes together (the α-β model)."""
        return 1e3 * (messages * self.latency + size / self.bandwidth)


@dataclass
class _Layer:
    """A convolution as the model runs it, and the bytes that autograd saves up to the next one."""

    name: str
    module: Any
    x: tuple[int, ...]
    y: tuple[int, ...]
    saved: int = 0


@dataclass
class _Trace:
    """The convolutions of a model in their order, and the bytes that come before the first."""

    layers: list[_Layer] = field(default_factory=list)
    saved_before: int = 0

    def add(self, size: int) -> None:
        """Count bytes that autograd saves now."""
        if self.layers:
            self.layers[-1].saved += size
        else:
            self.saved_before += size


def plan(
    model: nn.Module,
    shape: Sequence[int],
    *,
    world: int,
    memory: int | str | None = None,
    link: Link | None = None,
    workspace: int | str | None = None,
    training: bool = True,
    device: str = "cpu",
    time_ms: Time | None = None,
) -> SpatialPlan:
    """Return the fastest division of a model over `world` ranks within `memory` bytes on each.

    `shape` is the mini-batch of all ranks together, (N, C, ...). The plan names a mesh with the dimensions
    data, depth, height and width, and the convolution before which the tensor is gathered, if gathering pays.
    Every factorisation of `world` is tried. A divided convolution costs the best time of its part within
    `workspace`, and α for each neighbour and β for each byte of its halo. Dynamic programming over the
    convolutions finds the place to gather. The memory counts parameters, gradients and the bytes that
    autograd saves; the optimizer's state and workspaces come on top.

    The model is traced on the meta device, so it may be larger than the machine. The parts are measured on
    this machine and kept in the cache; `time_ms` gives the time of a kernel instead. Only nn.Conv modules
    count as work. Raises UsageError for a model without convolutions, NothingFitsError if no mesh fits.
    """
    link = link or Link(10e-6, 10e9)
    limit = parse_limit(memory) if isinstance(memory, str) else memory
    if world < 1 or len(shape) < 3:
        raise UsageError(f"world is {world} and the shape {tuple(shape)}: give at least 1 rank and 3 axes")
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    timer = time_ms or _Measured(device, workspace, training)
    passes = PASSES if training else PASSES[:1]
    parameters = sum(p.numel() * p.element_size() for p in model.parameters())
    found: list[tuple[SpatialCandidate, tuple[SpatialLayer, ...]]] = []
    traces: dict[int, _Trace] = {}
    for data, *sizes in factorisations(world, len(shape) - 1):
        if shape[0] % data or any(n < size for n, size in zip(shape[2:], sizes, strict=True)):
            continue
        samples = shape[0] // data
        if samples not in traces:
            traces[samples] = _trace(model, (samples, *shape[1:]), training)
        ranks = _Ranks(tuple(sizes), link, passes, _TYPES.get(dtype, "f32"), timer, device)
        cost, memory_needed, layers, gather = _best(traces[samples], ranks, parameters, limit, training)
        if training:  # gradients of all parameters, as a ring reduces them
            cost += link.time_ms(2 * (world - 1), 2 * (world - 1) / world * parameters)
        names = ["data", *_NAMES[: len(sizes)]]
        mesh = {name: size for name, size in zip(names, [data, *sizes], strict=True) if size > 1}
        fits = limit is None or memory_needed <= limit
        found.append((SpatialCandidate(mesh or {"data": 1}, gather, cost, memory_needed, fits), layers))
    if not found:
        raise UsageError(f"{world} ranks cannot share {tuple(shape)}: no factorisation divides its axes")
    found.sort(key=lambda one: (not one[0].fits, one[0].time_ms if one[0].fits else one[0].memory))
    best, layers = found[0]
    if not best.fits or best.time_ms == inf:
        raise NothingFitsError(
            f"no mesh of {world} ranks fits {format_size(limit)} on each: the least is "
            f"{format_size(best.memory)}"
        )
    axes = {2 + i: name for i, name in enumerate(_NAMES) if name in best.mesh}
    notes = (
        f"link: {link.latency * 1e6:g} µs a message, {link.bandwidth / 1e9:g} GB/s (given, not measured)",
        "times of convolutions: given by the caller"
        if time_ms
        else f"times of convolutions: measured on {device}",
        "not counted: other layers' time, the optimizer's state, workspaces",
    )
    return SpatialPlan(
        best.mesh, axes, best.gather_before, best.time_ms, best.memory, limit, layers,
        tuple(candidate for candidate, _ in found), notes,
    )  # fmt: skip


def follow(model: nn.Module, chosen: SpatialPlan) -> Any:
    """Gather the tensor before the layer that a plan names. Return a handle; its `remove()` undoes it."""
    name = chosen.gather_before
    if name is None:
        return nn.Identity().register_forward_pre_hook(lambda module, args: None)
    return model.get_submodule(name).register_forward_pre_hook(
        lambda module, args: tuple(x.gather() if isinstance(x, Divided) else x for x in args)
    )


@dataclass(frozen=True)
class _Ranks:
    """The ranks that share a sample, and how their work is timed."""

    sizes: tuple[int, ...]
    link: Link
    passes: tuple[str, ...]
    data_type: str
    time_ms: Time
    device: str

    @property
    def count(self) -> int:
        """The number of ranks that share a sample."""
        return product(self.sizes)


def _best(
    trace: _Trace, ranks: _Ranks, parameters: int, limit: int | None, training: bool
) -> tuple[float, int, tuple[SpatialLayer, ...], str | None]:
    """Return time, memory, layers and the place to gather.

    Among the places that fit, this is the fastest; if none fits, the one that needs least.
    """
    layers = trace.layers
    itemsize = 8 if ranks.data_type == "f64" else 2 if "16" in ranks.data_type else 4
    divided = [_divided(layer, ranks, itemsize) for layer in layers]
    whole = [sum(ranks.time_ms(k) for k in _kernels(layer, layer.x, ranks, ())) for layer in layers]
    largest = [parts(n, size)[0].size for n, size in zip(layers[0].x[2:], ranks.sizes, strict=True)]
    share = product(largest) / product(layers[0].x[2:])
    options = []
    for cut in range(len(layers) + 1) if ranks.count > 1 else [len(layers)]:
        moved = 0.0
        if 0 < cut < len(layers):
            size = product(layers[cut].x) * itemsize * (ranks.count - 1) / ranks.count
            moved = ranks.link.time_ms(ranks.count - 1, size) * (2 if training else 1)
        elif cut == 0:
            continue  # everything whole: that is another factorisation, with idle ranks
        time = sum(one.time_ms + one.exchange_ms for one in divided[:cut]) + moved + sum(whole[cut:])
        kept = trace.saved_before * share + sum(layer.saved for layer in layers[:cut]) * share
        kept += sum(one.halo_bytes for one in divided[:cut]) + sum(layer.saved for layer in layers[cut:])
        options.append((time, int(kept + parameters * (2 if training else 1)), cut))
    fitting = [one for one in options if limit is None or one[1] <= limit]
    time, memory, cut = min(fitting) if fitting else min(options, key=lambda one: one[1])
    rest = [
        SpatialLayer(layer.name, "whole", took, 0.0, 0)
        for layer, took in zip(layers[cut:], whole[cut:], strict=True)
    ]
    return time, memory, (*divided[:cut], *rest), layers[cut].name if cut < len(layers) else None


def _divided(layer: _Layer, ranks: _Ranks, itemsize: int) -> SpatialLayer:
    """Return the cost of a convolution: the largest local problem, and the largest halo of a rank."""
    x, axes, messages, halo = list(layer.x), [], 0, 0
    for i, size in enumerate(ranks.sizes):
        axis = i + 2
        if size == 1:
            continue
        stride, pad, span = _geometry(layer.module, i)
        is_transposed = isinstance(layer.module, nn.modules.conv._ConvTransposeNd)
        window = transposed(stride, pad, span) if is_transposed else sliding(stride, pad, span)
        owners = parts(layer.x[axis], size)
        windows = windows_of(parts(layer.y[axis], size), window)
        found = [pieces(windows[rank], owners, rank) for rank in range(size)]
        rows = max(one.received_before + one.received_after for one in found)
        halo += rows * product([n for a, n in enumerate(x) if a != axis]) * itemsize
        messages += max(_senders(owners, windows, rank) for rank in range(size))
        x[axis] = max(one.size for one in windows)
        axes.append(axis)
    took = sum(ranks.time_ms(kernel) for kernel in _kernels(layer, tuple(x), ranks, axes))
    directions = 2 if len(ranks.passes) > 1 else 1
    return SpatialLayer(layer.name, "divided", took, directions * ranks.link.time_ms(messages, halo), halo)


def _senders(owners: Sequence[Span], windows: Sequence[Span], rank: int) -> int:
    """Return the number of other ranks that send rows to a rank."""
    _, received = transfers(owners, windows, rank)
    return sum(span.size > 0 for peer, span in enumerate(received) if peer != rank)


def _geometry(module: Any, i: int) -> tuple[int, int, int]:
    """Return stride, padding and reach of a convolution along one axis."""
    span = reach(module.kernel_size[i], module.dilation[i])
    pad = (
        (span - 1) // 2 if module.padding == "same" else 0 if module.padding == "valid" else module.padding[i]
    )
    return module.stride[i], pad, span


def _kernels(layer: _Layer, x: tuple[int, ...], ranks: _Ranks, axes: Sequence[int]) -> list[Kernel]:
    """Return the kernels of a local problem: padding on the divided axes is part of x.

    A transposed convolution is the backward pass of another, and is timed so.
    """
    module = layer.module
    dims = len(x) - 2
    w = tuple(module.weight.shape)
    padding = tuple(0 if i + 2 in axes else _geometry(module, i)[1] for i in range(dims))
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        reaches = [_geometry(module, i)[2] for i in range(dims)]
        grown = [transposed_size(x[i + 2], padding[i], module.stride[i], reaches[i], 0) for i in range(dims)]
        x = (x[0], w[1] * module.groups, *grown)
    call = Call(
        "forward", ranks.device, ranks.data_type, "nchw", x, w, None, tuple(module.stride), padding,
        tuple(module.dilation), module.groups, None, "default", None,
    )  # fmt: skip
    problem, _ = geometry(call)
    return [Kernel(problem, pass_) for pass_ in ranks.passes]


class _Measured:
    """The best time of a kernel within a workspace limit, measured once and kept in the cache."""

    def __init__(self, device: str, workspace: int | str | None, training: bool) -> None:
        self.device, self.limit = device, limit_of(workspace)
        self._known: dict[Kernel, float] = {}

    def __call__(self, kernel: Kernel) -> float:
        if kernel not in self._known:
            listener, policy = LogListener(), settings.BATCH_POLICY.read()
            engine = device_named(
                self.device, torch.get_num_threads() if self.device == "cpu" else None
            ).engine
            with Cache.of_user(listener, needed=False) as cache:
                bench = Bench(engine, cache, listener)
                try:
                    benchmark(bench, [kernel], policy, comparing=False, limits=(self.limit,))
                    [decision] = decide(bench.costs([kernel]), policy, Limits(workspace=self.limit), listener)
                    self._known[kernel] = decision.chosen.time_ms
                except MucudnnError:  # too large for this machine, or nothing fits the limit
                    self._known[kernel] = inf
        return self._known[kernel]


def _trace(model: nn.Module, shape: tuple[int, ...], training: bool) -> _Trace:
    """Run a copy of the model on the meta device, which computes shapes alone. Raises UsageError."""
    meta = copy.deepcopy(model).to("meta").train(training)
    found = _Trace()
    seen: set[int] = set()
    names = {module: name for name, module in meta.named_modules()}
    own = {p.untyped_storage()._cdata for p in meta.parameters()}
    kept: list[Tensor] = []  # alive, so that no two storages have the same address

    def note(module: Any, args: tuple[Any, ...], y: Tensor) -> None:
        found.layers.append(_Layer(names[module], module, tuple(args[0].shape), tuple(y.shape)))

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage._cdata not in seen | own:
            seen.add(storage._cdata)
            kept.append(tensor)
            found.add(storage.nbytes())
        return tensor

    for module in meta.modules():
        if isinstance(module, nn.modules.conv._ConvNd):
            module.register_forward_hook(note)
    dtype = next((p.dtype for p in meta.parameters()), torch.float32)
    with (
        torch.set_grad_enabled(training),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        meta(torch.empty(shape, dtype=dtype, device="meta"))
    if not found.layers:
        raise UsageError("the model has no convolution: there is nothing to divide")
    return found
