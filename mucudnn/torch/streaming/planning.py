"""The fastest passes within a budget: where tensors are stored whole, and in how many tiles each pass runs.

The graph is cut at some places, where the tensors that are alive are stored whole. The memory of a stretch
between two cuts depends on its two ends alone, and the peak is a maximum, so the fastest set of cuts among
the candidates is a shortest path. An operator that reads a tensor whole for a part of its result, such as
attention its keys, needs a cut behind that tensor. The statistics of a norm need a pass over the norm's
input, which is free where that input is stored anyway.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch
from torch.fx import Node

from mucudnn.errors import UsageError
from mucudnn.sizes import format_size
from mucudnn.torch.streaming.boxes import Box, all_of, bytes_of, shape_of, sizes
from mucudnn.torch.streaming.graph import Sample
from mucudnn.torch.streaming.passes import Demand, Pass, Passes
from mucudnn.torch.streaming.rules import step
from mucudnn.torch.streaming.statistics import Norm

_aten = torch.ops.aten
TILES = tuple(2**power for power in range(9))
_MOST_STATISTICS = 10  # in a stretch, because each takes a pass through all operators before it
_STEP_MS = 0.02  # an operator's overhead


class Rates(NamedTuple):
    """The speed of a device."""

    flops: float  # a second
    bytes: float  # a second, of its own memory
    link: float  # bytes a second, from and to stored tensors elsewhere


CPU, GPU = Rates(6e10, 8e9, 1e9), Rates(3e13, 1.5e12, 2e10)


@dataclass(frozen=True)
class Cost:
    """The time and the memory of a pass."""

    ms: float
    work: int  # the bytes of a tile's own tensors at their peak
    flops: float
    tiles: int


@dataclass(frozen=True)
class Stretch:
    """The passes between two cuts."""

    passes: tuple[Pass, ...]
    peak: int
    ms: float


@dataclass(frozen=True)
class Schedule:
    """The passes of a whole run. `away` has the stored tensors that do not stay on the device."""

    stretches: tuple[Stretch, ...]
    peak: int
    ms: float
    away: frozenset[Node] = frozenset()

    @property
    def passes(self) -> list[Pass]:
        """All passes, in order."""
        return [each for stretch in self.stretches for each in stretch.passes]


class Planner:
    """Chooses the passes of a sample."""

    def __init__(self, sample: Sample, rates: Rates, *, training: bool) -> None:
        self._sample, self._rates, self._training = sample, rates, training
        self._passes = Passes(sample)
        self._between: dict[tuple[int, int], list[Pass]] = {}
        self._costs: dict[Any, Cost] = {}
        state = sample.module.parameters() if training else ()
        self._gradients = sum(int(each.nbytes) for each in state if each.requires_grad)

    def fastest(self, budget: float, away: Callable[[Node], bool]) -> Schedule | None:
        """Return the fastest passes whose peak fits the budget; None if there are none.

        All stored tensors stay until the backward pass of a training step, so their sum counts. The less a
        stretch may take, the fewer there are: the fastest of several such plans is the one.

        Stored tensors for which `away` is true take no memory of the device.
        """
        if not self._training:
            return self._shortest(budget, away)
        # Powers, so that a larger budget has all plans of a smaller one.
        last = int(2 * math.log2(max(budget, 1)))
        found = [self._shortest(2 ** (power / 2), away) for power in range(last - 7, last + 1)]
        fitting = (
            each for each in map(self._with_gradients, found) if each is not None and each.peak <= budget
        )
        return min(fitting, key=lambda each: each.ms, default=None)

    def _with_gradients(self, schedule: Schedule | None) -> Schedule | None:
        """Return a schedule with the peak and the time of its backward pass."""
        if schedule is None:
            return None
        passes, away = schedule.passes, schedule.away
        stored = {node for each in passes for node in each.stored if node not in away}
        gradients, peak, ms = set(self._sample.outputs), schedule.peak, schedule.ms
        for each in reversed(passes):
            gradients |= {
                node for node in each.sources if node not in away and node not in self._sample.means
            }
            own = self._gradients + self.cost(each, each.tiles).work
            peak = max(peak, sum(map(bytes_of, stored)) + sum(map(bytes_of, gradients)) + own)
            stored, gradients = stored - set(each.stored), gradients - set(each.stored)
        return replace(schedule, peak=peak, ms=3 * ms)

    def _shortest(self, budget: float, away: Callable[[Node], bool]) -> Schedule | None:
        places, must = self._candidates
        best: dict[int, tuple[float, tuple[Stretch, ...]]] = {-1: (0.0, ())}
        for k, end in enumerate(places):
            for begin in reversed([-1, *places[:k]]):
                if begin in best:
                    ms, before = best[begin]
                    limit = best[end][0] - ms if end in best else math.inf
                    found = self._stretch(begin, end, budget, away, limit)
                    if found is not None:
                        best[end] = ms + found.ms, (*before, found)
                if begin in must or self._statistics_between(begin, end) > _MOST_STATISTICS:
                    break
        if places[-1] not in best:
            return None
        ms, stretches = best[places[-1]]
        kept_away = frozenset(n for s in stretches for p in s.passes for n in p.stored if away(n))
        return Schedule(stretches, max(s.peak for s in stretches), ms, kept_away)

    def _statistics_between(self, begin: int, end: int) -> int:
        place = self._sample.place
        return sum(begin < place[node] <= end for node in self._sample.statistics_of)

    @cached_property
    def whole_flops(self) -> float:
        """The operations of convolutions, products and attention in a whole run."""
        every = {node: all_of(node) for node in self._sample.order}
        own = [node for node in self._sample.order if node not in self._sample.inputs]
        return sum(_flops(node, Demand(every, {node: step(node, every[node])}, {})) for node in own)

    @cached_property
    def _candidates(self) -> tuple[list[int], set[int]]:
        """Return the places where a cut may pay, and those where there must be one."""
        sample = self._sample
        must = {sample.place[node] for node in sample.stored}
        may = {len(sample.order) - 1} | must | {sample.place[node] for node in sample.statistics_of}
        alive = [sample.bytes_alive(place) for place in range(len(sample.order))]
        near = max(2, len(alive) // 80)
        for place, size in enumerate(alive):  # the least memory nearby
            before = min(alive[max(0, place - near) : place], default=math.inf)
            if size < before and size <= min(alive[place : place + near + 1]):
                may.add(place)
        return sorted(may), must

    def _stretch(
        self, begin: int, end: int, budget: float, away: Callable[[Node], bool], most_ms: float
    ) -> Stretch | None:
        """Return the fastest passes between two cuts, if they fit the budget and take less than `most_ms`."""
        key = begin, end
        if key not in self._between:
            self._between[key] = self._passes.between(begin, end)
        passes, target, have = self._between[key], self._sample.alive[end], self._passes.alive(begin)
        chosen, peak, ms = list[Pass](), 0, 0.0
        for k, each in enumerate(passes):
            later = target.union(*(other.sources for other in passes[k + 1 :]))
            alive = (have | set(each.stored)) - set(self._sample.inputs)
            stored = sum(bytes_of(node) for node in alive if not away(node))
            have = (have | set(each.stored)) & later
            far = sum(bytes_of(node) for node in (*each.stored, *each.sources) if away(node))
            fitting = list[Cost]()
            for tiles in TILES if stored < budget else ():
                cost = self.cost(each, tiles)
                if stored + cost.work <= budget:
                    fitting.append(cost)
                if len(fitting) > 2 or cost.tiles < tiles:
                    break
            if not fitting:
                return None
            cost = min(fitting, key=lambda cost: cost.ms)
            chosen.append(replace(each, tiles=cost.tiles, kept=frozenset(have)))
            peak, ms = max(peak, stored + cost.work), ms + cost.ms + far / self._rates.link * 1e3
            if ms >= most_ms:
                return None
        return Stretch(tuple(chosen), peak, ms)

    def cost(self, of: Pass, tiles: int) -> Cost:
        """Return what a pass takes with a number of tiles, from a tile in the middle."""
        key = of.sinks, of.sources, of.statistics, tiles
        if key not in self._costs:
            boxes = self._passes.grid(of.sinks[0], tiles)
            middle = boxes[len(boxes) // 2 + (len(boxes) > 8) * int(len(boxes) ** 0.5 / 2)]
            demand = self._passes.demand(of, middle)
            of.demands.clear()
            ms, flops = 0.0, 0.0
            for node, its in demand.steps.items():
                work = _flops(node, demand)
                moved = 0 if node.target in _VIEWS else bytes_of(node, its.box or demand.boxes[node])
                moved += sum(bytes_of(each, box) for each, box in its.inputs) if moved else 0
                flops += work
                ms += 1e3 * max(work / self._rates.flops, moved / self._rates.bytes) + _STEP_MS
            self._costs[key] = Cost(
                ms * len(boxes), self._bytes_of_tile(of, demand), flops * len(boxes), len(boxes)
            )
        return self._costs[key]

    def _bytes_of_tile(self, of: Pass, demand: Demand) -> int:
        """Return the bytes of a tile's own tensors at their peak; for training those of its backward pass."""
        owner, users = dict[Node, Node](), dict[Node, int]()
        for node, its in demand.steps.items():
            inputs = [each for each, _ in its.inputs]
            root = owner.get(inputs[0], inputs[0]) if node.target in _VIEWS and inputs else node
            owner[node] = root
            for each in inputs:
                users[owner.get(each, each)] = users.get(owner.get(each, each), 0) + 1
        live = peak = every = 0
        size = dict[Node, int]()
        kept = {owner.get(node, node) for node in of.sinks}
        for node, its in demand.steps.items():
            own = bytes_of(node, its.box or demand.boxes[node])
            copied = _bytes_inside(node, demand)
            if owner[node] is node:
                size[node] = own
                live += own
                every += own
            peak = max(peak, live + copied)
            for each, _ in its.inputs:
                root = owner.get(each, each)
                users[root] -= 1
                if not users[root] and root in size and root not in kept and owner[node] is not root:
                    live -= size.pop(root)
        read = [bytes_of(each.x, demand.boxes[each.x]) for each in of.statistics if isinstance(each, Norm)]
        peak = max(peak, live + max(read, default=0))
        if not self._training:
            return peak
        sources = sum(bytes_of(node, demand.boxes[node]) for node in of.sources if node in demand.boxes)
        return every + sources + peak


_VIEWS = {
    *(_aten.view.default, _aten.permute.default, _aten.transpose.int, _aten.slice.Tensor, _aten.select.int),
    *(
        _aten.unsqueeze.default,
        _aten.squeeze.dim,
        _aten.squeeze.dims,
        _aten.squeeze.default,
        _aten.expand.default,
    ),
    *(_aten.alias.default, _aten.detach.default, _aten._unsafe_view.default, _aten.t.default),
}


def _bytes_inside(node: Node, demand: Demand) -> int:
    """Return the bytes that an operator allocates beside its result."""
    name, inputs = str(node.target), demand.steps[node].inputs
    if "conv" in name:
        return bytes_of(*inputs[0])  # a padded or reordered copy
    if "attention" in name and (len(inputs[0][1]) != 4 or node.meta["val"].dtype == torch.float64):
        queries, keys = sizes(inputs[0][1])[:-1], sizes(inputs[1][1])[-2]
        return 2 * math.prod(queries) * keys * int(node.meta["val"].element_size())  # no fused kernel
    return 0


def _flops(node: Node, demand: Demand) -> float:
    """Return the operations of a convolution, a product or attention, for the boxes of a tile."""
    name, inputs = node.target._schema.name.removeprefix("aten::"), demand.steps[node].inputs
    if name.startswith("conv"):
        box: Box = inputs[0][1] if "transpose" in name else demand.steps[node].box or demand.boxes[node]
        return 2.0 * math.prod(sizes(box)) * math.prod(shape_of(node.args[1])[1:])
    if name in ("linear", "mm", "bmm", "matmul", "addmm"):
        first = inputs[1] if name == "addmm" else inputs[0]
        return 2.0 * math.prod(sizes(demand.boxes[node])) * sizes(first[1])[-1]
    if "attention" in name:
        return 4.0 * math.prod(sizes(demand.boxes[node])) * sizes(inputs[1][1])[-2]
    return 0.0


def choose(planner: Planner, sample: Sample, budget: int, store: str) -> Schedule:
    """Return the fastest schedule within a budget. Raises UsageError, which names the floor, if none fits."""
    outputs = set(sample.outputs)
    ways: list[Callable[[Node], bool]] = [lambda _: False] if store in ("auto", "device") else []
    if store != "device":
        ways.append(lambda node: node not in outputs)
    found = [schedule for away in ways if (schedule := planner.fastest(budget, away)) is not None]
    if found:
        return min(found, key=lambda schedule: schedule.ms)
    floor = min(_floor(planner, away, budget) for away in ways)
    other = '; with store="auto" tensors may be stored elsewhere' if store == "device" else ""
    raise UsageError(
        f"no plan fits {format_size(budget)}: the least that a run in tiles takes is about "
        f"{format_size(floor)}{other}"
    )


def _floor(planner: Planner, away: Callable[[Node], bool], low: float) -> int:
    """Return about the least peak of a plan in bytes. No plan fits `low`."""
    high = max(2.0 * low, 1.0)
    while (least := planner.fastest(high, away)) is None:
        low, high = high, 2 * high
    while high - low > 0.02 * high:
        middle = (low + high) / 2
        if (found := planner.fastest(middle, away)) is None:
            low = middle
        else:
            least, high = found, min(middle, found.peak)
    return least.peak
