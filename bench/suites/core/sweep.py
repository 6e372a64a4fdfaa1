"""Time against mini-batch size: the sizes at which the time of a sample jumps, and the gain by division."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator, Sequence

from bench.lib.host import host_bench, run_whole
from bench.lib.record import Record
from bench.suites.core.division import kernels
from mucudnn._native import Engine
from mucudnn.measuring.bench import Bench
from mucudnn.plans.sweep import SweepPoint, find_cliffs, sweep
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration, MicroConfiguration

LIMIT = 64 * 2**20
ROUNDS = 7


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Sweep ResNet-18's first 3x3 kernel over sizes, of which the large ones exceed 64 MiB with Winograd."""
    with host_bench() as bench:
        (kernel,) = [kernel for kernel in kernels("forward") if "layer1" in kernel.name]
        yield from run(bench, kernel, range(1, 25))


def run(bench: Bench, kernel: Kernel, sizes: Sequence[int]) -> Iterator[Record]:
    """Sweep one kernel over mini-batch sizes within 64 MiB.

    Yield the number of cliffs, and the speedup by division at the size where the prediction is largest.
    """
    (swept,) = sweep(bench, [kernel], sizes, "power_of_two", LIMIT)
    details = {
        "problem": str(kernel.problem),
        "at": [cliff.point.mini_batch for cliff in swept.cliffs],
        "undivided_ms": {p.mini_batch: p.undivided and p.undivided.time_ms for p in swept.points},
        "divided_ms": {p.mini_batch: p.divided and p.divided.time_ms for p in swept.points},
    }
    yield Record("sweep", str(kernel), "cliffs within 64 MiB", len(swept.cliffs), "", details)
    yield _gain(bench.engine, kernel, max(swept.points, key=_predicted))


def cliffs_of(times: dict[int, float]) -> list[int]:
    """Return the mini-batch sizes at which times jump; `times` gives ms by size, from any measurement."""
    measured = [MicroConfiguration(size, "any", times[size], 0) for size in sorted(times)]
    points = [SweepPoint(part.micro_batch, Configuration((part,)), None) for part in measured]
    return [cliff.point.mini_batch for cliff in find_cliffs(points)]


def _predicted(point: SweepPoint) -> float:
    if point.undivided is None or point.divided is None:
        return 0.0
    return point.undivided.time_ms / point.divided.time_ms


def _gain(engine: Engine, kernel: Kernel, point: SweepPoint) -> Record:
    """Run the undivided and the divided configuration of one size whole, and return the speedup."""
    details = {"at": point.mini_batch, "predicted": _predicted(point)}
    metric = "gain where dividing promises most"
    if point.undivided is None or point.divided is None:
        return Record("sweep", str(kernel), metric, None, "ratio", details)
    times = run_whole(engine, kernel.at(point.mini_batch), (point.undivided, point.divided), ROUNDS)
    undivided, divided = (statistics.median(times[c]) for c in (point.undivided, point.divided))
    return Record("sweep", str(kernel), metric, undivided / divided, "ratio", details)
