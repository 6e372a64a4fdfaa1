"""Time against mini-batch size: the sizes at which the time of a sample jumps, and the gain by division."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import replace

from bench.record import Record
from bench.whole import run_whole
from mucudnn._native import Engine
from mucudnn.costs.cache import Cache
from mucudnn.listener import Listener
from mucudnn.plans.sweep import Point, find_cliffs, sweep
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration, MicroConfiguration

LIMIT = 64 * 2**20
ROUNDS = 7


def run(
    engine: Engine, cache: Cache, kernel: Kernel, sizes: Sequence[int], listener: Listener
) -> list[Record]:
    """Sweep one kernel over mini-batch sizes within 64 MiB.

    Return the number of cliffs, and the speedup by division at the size where the prediction is largest.
    """
    ((found,), _) = sweep(engine, cache, [kernel], sizes, "power_of_two", LIMIT, listener)
    details = {
        "problem": str(kernel.problem),
        "at": [cliff.point.mini_batch for cliff in found.cliffs],
        "undivided_ms": {p.mini_batch: p.undivided and p.undivided.time_ms for p in found.points},
        "divided_ms": {p.mini_batch: p.divided and p.divided.time_ms for p in found.points},
    }
    cliffs = Record("sweep", str(kernel), "cliffs within 64 MiB", len(found.cliffs), "", details)
    most = max(found.points, key=_predicted)
    return [cliffs, _gain(engine, kernel, most)]


def cliffs_of(times: dict[int, float]) -> list[int]:
    """Return the mini-batch sizes at which times jump; `times` gives ms by size, from any measurement."""
    measured = [MicroConfiguration(size, "any", times[size], 0) for size in sorted(times)]
    points = [Point(part.micro_batch, Configuration((part,)), None) for part in measured]
    return [cliff.point.mini_batch for cliff in find_cliffs(points)]


def _predicted(point: Point) -> float:
    if point.undivided is None or point.divided is None:
        return 0.0
    return point.undivided.time_ms / point.divided.time_ms


def _gain(engine: Engine, kernel: Kernel, point: Point) -> Record:
    """Run the undivided and the divided configuration of one size whole, and return the speedup."""
    details = {"at": point.mini_batch, "predicted": _predicted(point)}
    metric = "gain where dividing promises most"
    if point.undivided is None or point.divided is None:
        return Record("sweep", str(kernel), metric, None, "ratio", details)
    there = replace(kernel, problem=kernel.problem.replace(mini_batch=point.mini_batch))
    times = run_whole(engine, there, (point.undivided, point.divided), ROUNDS)
    undivided, divided = (statistics.median(times[c]) for c in (point.undivided, point.divided))
    return Record("sweep", str(kernel), metric, undivided / divided, "ratio", details)
