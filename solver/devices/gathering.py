"""The layers of a chain before which a divided tensor is gathered onto fewer ranks, and finally onto one.

A layer runs in a *stage*, which says over how many ranks its input is divided. Time and memory of the layers
add up, and gathering between two layers takes time. Dynamic programming keeps the Pareto-optimal ways to each
stage, so that the result is exact for every memory limit.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import ne


@dataclass(frozen=True, slots=True)
class Gathering:
    """A stage for each layer, with the milliseconds and the bytes of all layers together."""

    stages: tuple[int, ...]
    time_ms: float
    memory: int


def gatherings(
    time_ms: Sequence[Sequence[float]],
    memory: Sequence[Sequence[int]],
    moves: Sequence[Sequence[Sequence[float]]],
) -> list[Gathering]:
    """Return all Pareto-optimal ways to gather, the fastest first.

    Args:
        time_ms: for each layer, its milliseconds in each stage; infinite if it cannot run there.
        memory: for each layer, the bytes that it needs in each stage.
        moves: for each layer, the milliseconds from stage to stage before it; infinite if there is no way.
            The first layer's row 0 says how the chain may begin.

    Each way needs less memory than all faster ones. The list is empty if no way is finite.
    """
    stages = range(len(time_ms[0])) if time_ms else range(0)
    fronts: list[list[Gathering]] = [[] for _ in stages]
    for layer, (times, sizes, move) in enumerate(zip(time_ms, memory, moves, strict=True)):
        sources = fronts if layer else [[Gathering((), 0.0, 0)]] + [[] for _ in stages[1:]]
        fronts = [
            _front([
                Gathering((*way.stages, to), way.time_ms + move[at][to] + times[to], way.memory + sizes[to])
                for at in stages
                if math.isfinite(move[at][to] + times[to])
                for way in sources[at]
            ])
            for to in stages
        ]  # fmt: skip
    return _front([way for front in fronts for way in front])


def _front(ways: Sequence[Gathering]) -> list[Gathering]:
    """Return the Pareto-optimal ways, and of equal ways the one with the fewest changes of stage."""
    front: list[Gathering] = []
    for way in sorted(
        ways, key=lambda way: (way.time_ms, way.memory, sum(map(ne, way.stages, way.stages[1:])), way.stages)
    ):
        if not front or way.memory < front[-1].memory:
            front.append(way)
    return front
