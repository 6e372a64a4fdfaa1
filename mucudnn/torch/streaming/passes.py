"""Passes over a sample in tiles: what each tile reads, computes and keeps."""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, product
from typing import NamedTuple

import torch
from torch import Tensor
from torch.fx import Node

from mucudnn.plans.stream_plan import StreamPlan
from mucudnn.torch.streaming.graph import Sample
from mucudnn.torch.streaming.nodes import bytes_of, is_view, shape_of
from mucudnn.torch.streaming.rules import Step, step
from mucudnn.torch.streaming.statistics import Norm, Statistic
from mucudnn.torch.windows.boxes import Box, hull
from mucudnn.torch.windows.spans import Span, parts


class Demand(NamedTuple):
    """The work of a tile: the box of each node, and the step of each node in order."""

    box: Box  # the tile of the pass's first sink
    boxes: dict[Node, Box]
    steps: dict[Node, Step]
    last_use: dict[Node, Node]  # the node that reads each one last
    takes: dict[Node, Node]  # the input whose memory a result lies in: of views, and of sums in place


@dataclass(frozen=True, eq=False)
class Pass:
    """Tiles of some tensors of one extent, computed from stored tensors through all operators between."""

    sinks: tuple[Node, ...]
    stored: tuple[Node, ...]  # the sinks that are kept whole
    statistics: tuple[Statistic, ...]  # those that the tiles of the sinks add to
    nodes: tuple[Node, ...]  # in order, without the sources
    sources: frozenset[Node]
    tiles: int = 1
    have: frozenset[Node] = frozenset()  # the stored tensors before the pass
    workspace: int = 0  # bytes for one of its convolutions


class Passes:
    """The passes of a sample between two places of its order.

    The tensors in `again` are never stored: passes compute them from the inputs, which stay.
    """

    def __init__(self, sample: Sample, again: Collection[Node] = ()) -> None:
        self.sample = sample
        alive, self._alive = set[Node](), list[frozenset[Node]]()
        self._steps: dict[tuple[Node, Box], Step] = {}
        for place, node in enumerate(sample.order):
            alive = {each for each in alive if sample.last_use[each] > place}
            if sample.last_use[node] > place and node not in sample.means and node not in again:
                alive.add(node)
            unread = sample.inputs if again or place < len(sample.inputs) - 1 else []
            self._alive.append(frozenset(alive).union(unread))

    def between(self, first: int, last: int) -> list[Pass]:
        """Return the passes that turn the tensors alive behind one place into those behind another.

        `first` is -1 before the sample. A pass that only adds up statistics keeps nothing.
        """
        sample, have = self.sample, self.alive(first)
        target, result = self.alive(last), list[Pass]()
        for node in sample.order[first + 1 : last + 1]:
            is_wanted = node in target - have or node in sample.statistics_of
            if not is_wanted or (node in have and first >= 0):
                continue
            nodes, sources, asked = self._reached([node], have)
            before = result[-1] if result else None
            if (
                before
                and self._alike(before.sinks[0], node)
                and not asked & set(before.statistics)
                and before.sources <= have
            ):
                sinks = (*before.sinks, node)
                result.pop()
                have = have - set(before.stored)
                nodes, sources, _ = self._reached(sinks, have)
            else:
                sinks = (node,)
            stored = tuple(each for each in sinks if each in target and each not in sample.inputs)
            statistics = tuple(s for each in sinks for s in sample.statistics_of.get(each, ()))
            result.append(Pass(sinks, stored, statistics, tuple(nodes), frozenset(sources)))
            have = have | set(stored)
        have = self.alive(first)
        for number, each in enumerate(result):
            result[number] = replace(each, have=frozenset(have))
            later = target.union(*(other.sources for other in result[number + 1 :]))
            have = (have | set(each.stored)) & later
        return result

    def planned(self, plan: StreamPlan) -> list[Pass]:
        """Return the passes of a plan for this sample."""
        places = (-1, *plan.cuts)
        own = [each for begin, end in pairwise(places) for each in self.between(begin, end)]
        return [
            replace(each, tiles=its.tiles, workspace=its.workspace)
            for each, its in zip(own, plan.passes, strict=True)
        ]

    def alive(self, place: int) -> frozenset[Node]:
        """Return the stored tensors behind a place; -1 is before the sample, whose inputs are there."""
        return frozenset(self.sample.inputs) if place < 0 else self._alive[place]

    def _alike(self, first: Node, second: Node) -> bool:
        """Return whether tiles of one tensor are tiles of the other."""
        a, b, axes = shape_of(first), shape_of(second), self.sample.axes[first]
        return axes == self.sample.axes[second] and all(a[i] == b[i] for i in axes)

    def _reached(
        self, sinks: Sequence[Node], have: Iterable[Node]
    ) -> tuple[list[Node], set[Node], set[Statistic]]:
        """Return the nodes between stored tensors and sinks, the sources, and their statistics."""
        sample, have = self.sample, set(have)
        nodes, sources, asked, stack = set[Node](), set[Node](), set[Statistic](), list(sinks)
        while stack:
            node = stack.pop()
            if node in nodes or node in sources:
                continue
            if node in sample.statistics:
                asked.add(sample.statistics[node])
            if node in have or node in sample.means:
                sources.add(node)
                continue
            nodes.add(node)
            statistic = sample.statistics.get(node)
            inputs = [statistic.x] if isinstance(statistic, Norm) else node.all_input_nodes
            stack += [each for each in inputs if each in sample.place]
        return sorted(nodes, key=sample.place.__getitem__), sources, asked

    def grid(self, node: Node, tiles: int) -> list[Box]:
        """Return the boxes of about this many tiles. The axis with the longest rows is halved first."""
        shape, axes = shape_of(node), self.sample.axes[node]
        counts = [1] * len(shape)
        while math.prod(counts) < tiles:
            axis = max(axes, key=lambda each: (shape[each] / counts[each], -each), default=None)
            if axis is None or shape[axis] // counts[axis] < 2:
                break
            counts[axis] *= 2
        return list(
            product(*([s for s in parts(n, count) if s.size] for n, count in zip(shape, counts, strict=True)))
        )

    def widened(self, node: Node, box: Box) -> Box:
        """Return the box of a sink for a tile of the pass's first sink."""
        return tuple(
            box[a] if a in self.sample.axes[node] else Span(0, n) for a, n in enumerate(shape_of(node))
        )

    def demand(self, of: Pass, box: Box) -> Demand:
        """Return what a tile computes."""
        boxes = {node: self.widened(node, box) for node in of.sinks}
        steps = dict[Node, Step]()
        for node in reversed(of.nodes):
            if node not in boxes:
                continue
            statistic = self.sample.statistics.get(node)
            key = node, boxes[node]
            if key not in self._steps:
                self._steps[key] = statistic.step(key[1]) if isinstance(statistic, Norm) else step(*key)
            steps[node] = self._steps[key]
            for each, wanted in steps[node].inputs:
                if each in self.sample.place:
                    boxes[each] = hull(boxes.get(each), wanted)
        ordered = {node: steps[node] for node in of.nodes if node in steps}
        last_use = {each: node for node, its in ordered.items() for each, _ in its.inputs}
        takes = {node: its.inputs[0][0] for node, its in ordered.items() if is_view(node)}
        for node, its in ordered.items():
            if node.target is torch.ops.aten.add.Tensor and len(its.inputs) == 2 and not node.kwargs:
                for number, (each, part) in enumerate(its.inputs):
                    fits = bytes_of(each, part) == bytes_of(node, boxes[node])
                    # The result of a convolution that nothing else reads.
                    if (
                        fits
                        and len(each.users) == 1
                        and each not in of.sinks
                        and steps.get(each, its).problem
                    ):
                        takes[node] = each
                        ordered[node] = its._replace(run=partial(_add_to, number))
        return Demand(box, boxes, ordered, last_use, takes)


def _add_to(number: int, *tiles: Tensor) -> Tensor:
    return tiles[number].add_(tiles[1 - number])
