"""The costs of a divided model, and the best places to gather and to divide again on each mesh."""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import inf

import torch
from torch import nn

from mucudnn import settings
from mucudnn.arrays.call import LogListener, PassCall, geometry, limit_of
from mucudnn.arrays.devices import device_named
from mucudnn.costs.cache import Cache
from mucudnn.errors import MucudnnError, UsageError
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.runners import Exhaustive
from mucudnn.plans.decide import choose_within
from mucudnn.plans.devices.spatial_plan import SpatialCandidate, SpatialLayer, SpatialStage
from mucudnn.problems.kernels import PASSES, Kernel
from mucudnn.solver.devices.gathering import gatherings
from mucudnn.solver.devices.pipelines import PeerLink
from mucudnn.torch.parallel.spatial.planning.following import divide_as_planned
from mucudnn.torch.parallel.spatial.planning.tracing import (
    NAMES,
    Layer,
    Part,
    geometry_of,
    peak_bytes,
    trace_part,
    whole_or_part,
)
from mucudnn.torch.tracing.recorder import DATA_TYPES
from mucudnn.torch.windows.spans import (
    parts,
    product,
    sliding,
    transposed,
    transposed_size,
    windows_of,
)

Time = Callable[[Kernel], float]


@dataclass
class Chooser:
    """The choice of the best division of each layer for each mesh. Meshes share the parts that they trace.

    Attributes:
        meta: the model on the meta device.
        shape: the shape of the mini-batch of all ranks.
        link: the connection between two ranks.
        time_ms: the milliseconds of a kernel.
        device: the device that computes.
        dtype: the data type of the model.
        training: whether there is a backward pass.
        rate: the bytes that other operators move in a second.
        refusal: the first error of an operator that refused divided tensors.
    """

    meta: nn.Module
    shape: tuple[int, ...]
    link: PeerLink
    time_ms: Time
    device: str
    dtype: torch.dtype
    training: bool
    rate: float
    refusal: Exception | None = None
    _parts: dict[tuple[int, tuple[int, ...]], Part] = field(default_factory=dict)

    def choose(
        self, mesh: dict[str, int], samples: int, sizes: tuple[int, ...], limit: int | None
    ) -> tuple[SpatialCandidate, tuple[SpatialLayer, ...]] | None:
        """Return the fastest way to divide the layers that fits the limit, or the smallest if none fits."""
        stages = [
            tuple(size if keep else 1 for size, keep in zip(sizes, kept, strict=True))
            for kept in itertools.product(*((True, False) if size > 1 else (True,) for size in sizes))
        ]
        parts = [self._part(samples, stage) for stage in stages]
        missing = SpatialLayer("", "", inf, inf, 0, inf, 0)
        costs = list(
            itertools.zip_longest(*(map(self._cost, part.layers) for part in parts), fillvalue=missing)
        )
        saved = itertools.zip_longest(
            *([layer.saved for layer in part.layers] for part in parts), fillvalue=0
        )
        ways = gatherings(
            [[cost.time_ms + cost.exchange_ms + cost.others_ms for cost in of_stages] for of_stages in costs],
            list(saved),
            [
                [[self._move(k, before, after) for after in parts] for before in parts]
                for k in range(len(parts[-1].layers))
            ],
        )
        best: tuple[SpatialCandidate, tuple[SpatialLayer, ...]] | None = None
        least, more = 0, 0
        for way in ways:
            if best is not None and limit is not None and way.memory + more > limit and way is not ways[-1]:
                continue
            layers = tuple(costs[k][stage] for k, stage in enumerate(way.stages))
            switches = self._switches(way.stages, stages, parts)
            needed = self._bytes(samples, sizes, layers, switches, way.stages, parts)
            more = needed - way.memory
            fits = limit is None or needed <= limit
            if best is None or needed < least:
                gathered = next((switch.before for switch in switches if not switch.divided), None)
                best = SpatialCandidate(mesh, gathered, way.time_ms, needed, fits, switches), layers
                least = needed
            if fits:
                break
        return best

    def _part(self, samples: int, sizes: tuple[int, ...]) -> Part:
        if (samples, sizes) not in self._parts:
            shape = (samples, *self.shape[1:])
            part = trace_part(self.meta, shape, sizes, self.dtype, self.training)
            if product(sizes) == 1 and not part.layers:
                raise UsageError("the model has no convolution: there is nothing to divide")
            self.refusal = self.refusal or part.refusal
            self._parts[samples, sizes] = part
        return self._parts[samples, sizes]

    def _cost(self, layer: Layer) -> SpatialLayer:
        """Return the costs of a convolution and of everything before the next convolution."""
        time_ms = sum(self.time_ms(kernel) for kernel in self._kernels(layer))
        directions = 2 if self.training else 1
        exchange = directions * self.link.milliseconds(layer.received, layer.messages)
        others = (3 if self.training else 1) * 1e3 * layer.moved / self.rate
        place = "divided" if product(layer.sizes) > 1 else "whole"
        ranks = product(layer.sizes)
        return SpatialLayer(layer.name, place, time_ms, exchange, layer.received, others, ranks)

    def _kernels(self, layer: Layer) -> list[Kernel]:
        return kernels_of(
            layer, PASSES if self.training else PASSES[:1], DATA_TYPES.get(self.dtype, "f32"), self.device
        )

    def _move(self, k: int, before: Part, after: Part) -> float:
        """Return the milliseconds to divide the input of layer k as another part does; infinity at first.

        Gathering sends rows forward and their gradients back, and dividing again sends gradients only.
        """
        if k == 0:
            return 0.0 if before is after else inf
        if k >= min(len(before.layers), len(after.layers)):
            return inf
        layer = after.layers[k]
        arrived, wanted = before.layers[k].arrived, layer.sizes
        kept = [min(a, b) for a, b in zip(arrived, wanted, strict=True)]
        gathered, divided = self._transfer(layer, kept, arrived), self._transfer(layer, kept, wanted)
        return 2 * gathered + divided if self.training else gathered

    def _transfer(self, layer: Layer, few: Sequence[int], many: Sequence[int]) -> float:
        """Return the milliseconds in which parts of a layer's input on many ranks become parts on few."""
        size = product(layer.x) * self.dtype.itemsize * (1 / product(few) - 1 / product(many))
        return self.link.milliseconds(size, sum(b - 1 for a, b in zip(few, many, strict=True) if a != b))

    def _switches(
        self, way: Sequence[int], stages: Sequence[tuple[int, ...]], parts: Sequence[Part]
    ) -> tuple[SpatialStage, ...]:
        """Return the layers whose inputs are gathered or divided again, by the plan or against the model."""
        switches: list[SpatialStage] = []
        for k, (before, after) in enumerate(itertools.pairwise((way[0], *way))):
            layer = parts[after].layers[k]
            as_model = switches or layer.arrived == layer.sizes
            if before != after or not as_model:
                kept = tuple(name for name, size in zip(NAMES, stages[after], strict=False) if size > 1)
                switches.append(SpatialStage(layer.name, kept))
        return tuple(switches)

    def _bytes(
        self,
        samples: int,
        sizes: tuple[int, ...],
        layers: Sequence[SpatialLayer],
        switches: Sequence[SpatialStage],
        way: Sequence[int],
        parts: Sequence[Part],
    ) -> int:
        """Return the most bytes that a rank holds, with the largest workspace."""
        handles = divide_as_planned(self.meta, layers, switches)
        x = whole_or_part((samples, *self.shape[1:]), sizes, self.dtype)
        try:
            held = peak_bytes(self.meta, x, self.training)
        finally:
            for handle in handles:
                handle.remove()
        if not isinstance(self.time_ms, Measured):
            return held
        kernels = [kernel for k, stage in enumerate(way) for kernel in self._kernels(parts[stage].layers[k])]
        return held + max(map(self.time_ms.workspace, kernels), default=0)


def kernels_of(layer: Layer, passes: Sequence[str], data_type: str, device: str) -> list[Kernel]:
    """Return the kernels of a convolution's largest local problem, in which padding of divided axes is data.

    A transposed convolution is timed as the backward pass of another convolution.
    """
    module, x, axes = layer.module, list(layer.x), []
    is_transposed = isinstance(module, nn.modules.conv._ConvTransposeNd)
    for i, size in enumerate(layer.sizes):
        if size == 1:
            continue
        stride, pad, span = geometry_of(module, i)
        window = transposed(stride, pad, span) if is_transposed else sliding(stride, pad, span)
        x[i + 2] = max(span.size for span in windows_of(parts(layer.y[i + 2], size), window))
        axes.append(i)
    w = tuple(module.weight.shape)
    padding = tuple(0 if i in axes else geometry_of(module, i)[1] for i in range(len(x) - 2))
    if is_transposed:
        reaches = [geometry_of(module, i)[2] for i in range(len(x) - 2)]
        grown = [
            transposed_size(n, pad, stride, span, 0)
            for n, pad, stride, span in zip(x[2:], padding, module.stride, reaches, strict=True)
        ]
        x = [x[0], w[1] * module.groups, *grown]
    call = PassCall(
        "forward", device, data_type, "nchw", tuple(x), w, None, tuple(module.stride), padding,
        tuple(module.dilation), module.groups, None, "default", None,
    )  # fmt: skip
    problem, _ = geometry(call)
    return [Kernel(problem, pass_) for pass_ in passes]


class Measured:
    """The best time of a kernel within a workspace limit, measured once and kept in the cache."""

    def __init__(self, device: str, workspace: int | str | None) -> None:
        self.device, self.limit = device, limit_of(workspace)
        self._known: dict[Kernel, tuple[float, int]] = {}

    def __call__(self, kernel: Kernel) -> float:
        """Return the milliseconds of the fastest configuration; infinity if none can be measured."""
        return self._find(kernel)[0]

    def workspace(self, kernel: Kernel) -> int:
        """Return the workspace of the fastest configuration."""
        return self._find(kernel)[1]

    def _find(self, kernel: Kernel) -> tuple[float, int]:
        if kernel not in self._known:
            listener, policy = LogListener(), settings.BATCH_POLICY.read()
            threads = torch.get_num_threads() if self.device == "cpu" else None
            engine = device_named(self.device, threads).engine
            with Cache.of_user(listener, needed=False) as cache:
                bench = Bench(engine, cache, listener, Exhaustive())
                try:
                    costs = benchmark(bench, [kernel], policy, limits=(self.limit,))
                    chosen = choose_within(costs, kernel, policy, self.limit)
                    self._known[kernel] = chosen.time_ms, chosen.workspace
                except MucudnnError:  # too large for this machine, or nothing fits the limit
                    self._known[kernel] = inf, 0
        return self._known[kernel]
