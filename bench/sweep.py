"""Time against mini-batch size: where that of a sample jumps, undivided, and what dividing makes of it."""

from __future__ import annotations

from collections.abc import Sequence

from bench.record import Record
from mucudnn._native import Engine
from mucudnn.cache import Cache
from mucudnn.kernels import Kernel
from mucudnn.listener import Listener
from mucudnn.solver import Configuration, MicroConfiguration
from mucudnn.sweep import Point, find_cliffs, sweep

LIMIT = 64 * 2**20


def run(
    engine: Engine, cache: Cache, kernel: Kernel, sizes: Sequence[int], listener: Listener
) -> list[Record]:
    """Of one kernel at these mini-batch sizes, within 64 MiB: cliffs, and the most that dividing gains."""
    ((found,), _) = sweep(engine, cache, [kernel], sizes, "power_of_two", LIMIT, listener)
    gains = {point.mini_batch: gain for point in found.points if (gain := _gain(point)) is not None}
    details = {
        "problem": str(kernel.problem),
        "at": [cliff.point.mini_batch for cliff in found.cliffs],
        "undivided_ms": {p.mini_batch: p.undivided and p.undivided.time_ms for p in found.points},
        "divided_ms": {p.mini_batch: p.divided and p.divided.time_ms for p in found.points},
    }
    case = str(kernel)
    largest = max(gains, key=gains.__getitem__, default=None)
    return [
        Record("sweep", case, "cliffs of the best undivided within 64 MiB", len(found.cliffs), "", details),
        Record(
            "sweep", case, "most that dividing gains", largest and gains[largest], "ratio", {"at": largest}
        ),
    ]


def cliffs_of(times: dict[int, float]) -> list[int]:
    """The mini-batch sizes at which times jump that were measured elsewhere, in ms for each size."""
    measured = [MicroConfiguration(size, "any", times[size], 0) for size in sorted(times)]
    points = [Point(part.micro_batch, Configuration((part,)), None) for part in measured]
    return [cliff.point.mini_batch for cliff in find_cliffs(points)]


def _gain(point: Point) -> float | None:
    if point.undivided is None or point.divided is None:
        return None
    return point.undivided.time_ms / point.divided.time_ms
