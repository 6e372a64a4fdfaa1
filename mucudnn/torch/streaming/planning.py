"""The fastest passes within a budget: where tensors are stored whole, and in how many tiles each pass runs.

The graph is cut at some places, where the tensors that are alive are stored whole. The memory of a stretch
between two cuts depends on its two ends alone, and the peak is a maximum, so the fastest set of cuts among
the candidates is a shortest path. An operator that reads a tensor whole for a part of its result, such as
attention its keys, needs a cut behind that tensor. The statistics of a norm need a pass over the norm's
input, which is free where that input is stored anyway.
"""

import math
from bisect import bisect_left
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from torch.fx import Node

from mucudnn.errors import UsageError
from mucudnn.plans.stream_plan import StreamPass, StreamPlan
from mucudnn.sizes import format_size
from mucudnn.torch.streaming.costs import Cost, Costs, flops
from mucudnn.torch.streaming.graph import Sample
from mucudnn.torch.streaming.nodes import all_of, bytes_of
from mucudnn.torch.streaming.passes import Demand, Pass, Passes
from mucudnn.torch.streaming.rules import Step, step
from mucudnn.torch.streaming.statistics import Norm
from mucudnn.torch.windows.boxes import Box

_FARTHEST = 12  # candidates; longer stretches have not paid
TILES = tuple(2**power for power in range(9))


@dataclass(frozen=True)
class PassCost:
    """The time and the memory of a pass with a number of tiles."""

    tiles: int
    operators: Collection[Cost]  # those of one tile
    work: int  # the bytes of a tile's own tensors at their peak, without workspaces
    moved: int  # the bytes that a tile reads of stored tensors and writes to them

    def ms(self, workspace: int) -> float:
        """Return the time in ms within a workspace for each convolution."""
        own = (each.ms + min(t for w, t in each.levels if w <= workspace) for each in self.operators)
        return self.tiles * sum(own)


@dataclass(frozen=True)
class Schedule:
    """The passes of a run, or of a stretch of it."""

    passes: tuple[Pass, ...]
    peak: int  # without workspaces
    ms: float
    cuts: tuple[int, ...] = ()  # the places behind which it stores tensors
    away: bool = False  # True if stored tensors are not on the device, apart from results
    again: frozenset[Node] = frozenset()  # tensors that passes compute again instead of reading them


class Planner:
    """Chooses the passes of a sample."""

    def __init__(
        self, sample: Sample, costs: Costs, *, training: bool, again: frozenset[Node] = frozenset()
    ) -> None:
        self._sample, self._model, self._training, self._again = sample, costs, training, again
        self._passes = Passes(sample, again)
        self._between: dict[tuple[int, int], list[Pass]] = {}
        self._costs: dict[Any, PassCost] = {}
        self._operators: dict[tuple[Node, Box], Cost] = {}
        state = sample.module.parameters() if training else ()
        self._gradients = sum(int(each.nbytes) for each in state if each.requires_grad)

    def fastest(self, budget: float, *, away: bool) -> Schedule | None:
        """Return the fastest passes whose peak fits the budget; None if there are none.

        All stored tensors stay until the backward pass of a training step, so their sum counts. The less a
        stretch may take, the fewer there are: the fastest of several such plans is the one.
        """
        if not self._training:
            return self._shortest(budget, away)
        # Powers, so that a larger budget has all plans of a smaller one.
        last = int(2 * math.log2(max(budget, 1)))
        found = [self._shortest(2 ** (power / 2), away) for power in range(last - 7, last + 1)]
        trained = (self._with_gradients(each, budget) for each in found if each is not None)
        return min((e for e in trained if e.peak <= budget), key=lambda each: each.ms, default=None)

    def _with_gradients(self, schedule: Schedule, budget: float) -> Schedule:
        """Return a schedule with the peak and the time of its backward pass."""
        passes, away, peak = list[Pass](), schedule.away, schedule.peak
        stored = {node for each in schedule.passes for node in each.stored}
        gradients = set(self._sample.outputs)
        for each in reversed(schedule.passes):
            gradients |= each.sources - self._sample.means
            own = self._gradients + self._tile(self.cost(each, each.tiles), away)
            own += self._stored(stored, away) + self._stored(gradients, away)
            passes.insert(0, replace(each, workspace=max(0, min(each.workspace, int(budget) - own))))
            peak = max(peak, own)
            stored, gradients = stored - set(each.stored), gradients - set(each.stored)
        return replace(schedule, passes=tuple(passes), peak=peak, ms=3 * schedule.ms)

    def _stored(self, nodes: Iterable[Node], away: bool) -> int:
        """Return the bytes that these stored tensors take on the device."""
        return sum(bytes_of(node) for node in nodes if not away or node in self._sample.outputs)

    def _shortest(self, budget: float, away: bool) -> Schedule | None:
        places, must = self._candidates
        best = {-1: Schedule((), 0, 0.0)}
        for k, end in enumerate(places):
            for begin in reversed([-1, *places[:k]][-_FARTHEST:]):
                if begin in best:
                    before = best[begin]
                    most_ms = best[end].ms - before.ms if end in best else math.inf
                    found = self._stretch(begin, end, budget, away, most_ms)
                    if found is not None:
                        passes, peak = before.passes + found.passes, max(before.peak, found.peak)
                        best[end] = Schedule(passes, peak, before.ms + found.ms, (*before.cuts, end))
                if begin in must:
                    break
        found = best.get(places[-1])
        return found and replace(found, away=away, again=self._again)

    @cached_property
    def _candidates(self) -> tuple[list[int], set[int]]:
        """Return the places where a cut may pay, and those where there must be one."""
        sample = self._sample
        must = {sample.place[node] for node in sample.stored}
        may = {len(sample.order) - 1} | must | {sample.place[node] for node in sample.statistics_of}
        alive = [sum(map(bytes_of, self._passes.alive(place))) for place in range(len(sample.order))]
        near = max(2, len(alive) // 80)
        for place, size in enumerate(alive):  # the least memory nearby
            before = min(alive[max(0, place - near) : place], default=math.inf)
            if size < before and size <= min(alive[place : place + near + 1]):
                may.add(place)
        return sorted(may), must

    def _stretch(self, begin: int, end: int, budget: float, away: bool, most_ms: float) -> Schedule | None:
        """Return the fastest passes between two cuts, if they fit the budget and take less than `most_ms`."""
        key = begin, end
        if key not in self._between:
            self._between[key] = self._passes.between(begin, end)
        chosen, peak, ms = list[Pass](), 0, 0.0
        for each in self._between[key]:
            stored = self._stored((each.have | set(each.stored)) - set(self._sample.inputs), away)
            far = self._stored((*each.stored, *each.sources), False) * away / self._model.device.link * 1e3
            fitting = list[tuple[float, int, PassCost]]()
            for tiles in TILES if stored < budget else ():
                cost = self.cost(each, tiles)
                left = int(budget) - stored - self._tile(cost, away)
                if left >= 0:
                    own = cost.ms(left)
                    # Beside a GPU's computation only the first copies in wait, and the last copies out.
                    all_ms = max(own, far) + far / cost.tiles if self._model.copies else own + far
                    fitting.append((all_ms, left, cost))
                if len(fitting) > 2 or cost.tiles < tiles:
                    break
            if not fitting:
                return None
            all_ms, left, cost = min(fitting, key=lambda its: its[0])
            chosen.append(replace(each, tiles=cost.tiles, workspace=left))
            peak = max(peak, stored + self._tile(cost, away))
            ms += all_ms
            if ms >= most_ms:
                return None
        return Schedule(tuple(chosen), peak, ms)

    def _tile(self, cost: PassCost, away: bool) -> int:
        """Return the bytes of a tile, and of what is copied for its neighbours meanwhile."""
        return cost.work + 2 * cost.moved * (away and self._model.copies)

    def cost(self, of: Pass, tiles: int) -> PassCost:
        """Return what a pass takes with a number of tiles, from a tile in the middle."""
        key = of.sinks, of.sources, of.statistics, tiles
        if key not in self._costs:
            boxes = self._passes.grid(of.sinks[0], tiles)
            middle = boxes[len(boxes) // 2 + (len(boxes) > 8) * int(len(boxes) ** 0.5 / 2)]
            demand = self._passes.demand(of, middle)
            costs = {
                node: self._operator(node, its, demand.boxes[node]) for node, its in demand.steps.items()
            }
            parts = (node for node in (*of.stored, *of.sources) if node in demand.boxes)
            moved = sum(bytes_of(node, demand.boxes[node]) for node in parts)
            self._costs[key] = PassCost(
                len(boxes), costs.values(), self._bytes_of_tile(of, demand, costs), moved
            )
        return self._costs[key]

    def _operator(self, node: Node, its: Step, box: Box) -> Cost:
        key = node, box
        if key not in self._operators:
            self._operators[key] = self._model.operator(node, its, box)
        return self._operators[key]

    def _bytes_of_tile(self, of: Pass, demand: Demand, costs: Mapping[Node, Cost]) -> int:
        """Return the bytes of a tile's own tensors at their peak; for training those of its backward pass."""
        root = dict[Node, Node]()  # the node whose memory a result lies in
        for node in demand.steps:
            taken = demand.takes.get(node, node)
            root[node] = root.get(taken, taken)
        last = {
            root.get(each, each): node for node, its in demand.steps.items() for each, _ in its.inputs
        } | {root.get(node, node): None for node in of.sinks}
        live = peak = 0
        for node, its in demand.steps.items():
            live += costs[node].size * (root[node] is node)
            peak = max(peak, live + costs[node].inside)
            read = {root.get(each, each) for each, _ in its.inputs}
            live -= sum(costs[each].size for each in read if each in costs and last[each] is node)
        copies = [bytes_of(each.x, demand.boxes[each.x]) for each in of.statistics if isinstance(each, Norm)]
        peak = max(peak, live + max(copies, default=0))
        if not self._training:
            return peak
        sources = sum(bytes_of(node, demand.boxes[node]) for node in of.sources if node in demand.boxes)
        return sources + peak + sum(costs[node].size for node in root if root[node] is node)

    def choose(self, budget: int, store: str) -> Schedule:
        """Return the fastest schedule within a budget. Raises UsageError, which names the floor."""
        ways = {"auto": (False, True), "device": (False,)}.get(store, (True,))
        planners = self, self._without_skip
        tried = (each.fastest(budget, away=away) for away in ways for each in planners)
        if found := [each for each in tried if each is not None]:
            return min(found, key=lambda schedule: schedule.ms)
        floor = min(self._floor(away) for away in ways)
        other = '; with store="auto" tensors may be stored elsewhere' if store == "device" else ""
        raise UsageError(
            f"no plan fits {format_size(budget)}: the least that a run in tiles takes is about "
            f"{format_size(floor)}{other}"
        )

    @cached_property
    def _without_skip(self) -> "Planner":
        """The planner that does not store the tensor that takes the most bytes for the longest time."""
        place, last_use = self._sample.place, self._sample.last_use
        results = {*self._sample.inputs, *self._sample.outputs, *self._sample.stored}
        skips = [node for node in place if node not in results]
        skips.sort(key=lambda node: bytes_of(node) * (last_use[node] - place[node]))
        return Planner(self._sample, self._model, training=self._training, again=frozenset(skips[-1:]))

    def _floor(self, away: bool) -> int:
        """Return about the least peak of a plan in bytes."""
        power = bisect_left(range(2048), True, key=lambda power: self._any(1.02**power, away) is not None)
        least = self._any(1.02**power, away)
        assert least is not None
        return least.peak

    def _any(self, budget: float, away: bool) -> Schedule | None:
        return self._without_skip.fastest(budget, away=away) or self.fastest(budget, away=away)

    def describe(self, schedule: Schedule, memory: int, place: str) -> StreamPlan:
        """Return the plan of a schedule. `place` is where tensors away from the device are stored."""
        sample = self._sample
        costs = [(each, self.cost(each, each.tiles)) for each in schedule.passes]
        stored = {node for each in schedule.passes for node in each.stored}
        work = sum(each.flops * cost.tiles for _, cost in costs for each in cost.operators)
        return StreamPlan(
            inputs=sample.spelled,
            operators=sample.digest,
            training=self._training,
            memory=memory,
            peak=schedule.peak,
            work=max(work / (self._whole_flops or 1.0), 1.0),
            store=place if schedule.away else "device",
            elsewhere=self._stored(stored, False) - self._stored(stored, schedule.away),
            cuts=schedule.cuts,
            again=tuple(node.name for node in schedule.again),
            passes=tuple(
                StreamPass(
                    tuple(n.name for n in each.stored),
                    each.tiles,
                    self._tile(cost, schedule.away),
                    each.workspace,
                )
                for each, cost in costs
            ),
            whole=tuple(dict.fromkeys(sample.whole.values())),
        )

    @cached_property
    def _whole_flops(self) -> float:
        """The operations of convolutions, products and attention in a whole run."""
        own = [node for node in self._sample.order if node not in self._sample.inputs]
        return sum(flops(node, step(node, all_of(node)), all_of(node)) for node in own)
