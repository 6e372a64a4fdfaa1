"""Comparisons of a kernel's divided and undivided configurations, run whole and interleaved."""

from collections.abc import Iterable, Sequence

import numpy as np

from mucudnn._native import MOST_ROUNDS, Engine, second_lowest
from mucudnn.costs.records import Comparison
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.buffers import Tensors, allocate_workspace, extent
from mucudnn.measuring.engines import prepare
from mucudnn.measuring.source import InterleavedTimes, runs_stock
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import ChannelGroups, Configuration

# The ms for all rounds and the fewest rounds, and those of a program that waits.
_PATIENT, _HURRIED = (2000.0, 5), (25.0, 1)
REPEATS = 9  # runs of a time with an interval, which then ends before the least and the largest time


def compare(
    bench: Bench, kernel: Kernel, undivided: Configuration | None, divided: Configuration | ChannelGroups
) -> tuple[Comparison, bool]:
    """Run both configurations interleaved on the whole mini-batch, and return their times.

    The second value says that other programs disturbed too many runs for a choice. Raises MucudnnError if the
    tensors do not fit in the bench's memory.
    """
    engine = bench.engine
    bench.extent(kernel)
    bench.made["compared"] += 1
    ways = [divided] if undivided is None or undivided == divided else [divided, undivided]
    budget_ms, fewest = _HURRIED if bench.runner.is_hurried else _PATIENT
    expected_ms = sum(way.time_ms for way in ways)
    rounds = int(min(max(budget_ms / max(expected_ms, 1e-3), fewest), MOST_ROUNDS))
    configurations = [way for way in ways if isinstance(way, Configuration)]
    if bench.source is not None and any(map(runs_stock, configurations)):
        times, is_busy = bench.source.compare(engine, kernel, configurations, rounds)
    else:
        times, is_busy = run_interleaved(engine, kernel, ways, rounds)
    divided_ms, divided_spread = second_lowest(times[0]), spread(times[0])
    if undivided is None:
        return Comparison(None, divided_ms, None, divided_spread), is_busy
    whole = times[-1]
    return Comparison(second_lowest(whole), divided_ms, spread(whole), divided_spread), is_busy


def run_interleaved(
    engine: Engine, kernel: Kernel, ways: Iterable[Configuration | ChannelGroups], rounds: int
) -> InterleavedTimes:
    """Run ways of a kernel whole and interleaved, and return their times in each round."""
    tensors = Tensors.random(engine, kernel.problem, extent(kernel.problem))
    divisions = [prepare(engine, kernel, way) for way in ways]
    workspace = allocate_workspace(engine, max(division.workspace for division in divisions))
    return InterleavedTimes(
        *engine.compare(
            divisions, tensors.x, tensors.w, tensors.y, workspace, rounds=rounds, operands=tensors.operands
        )
    )


def spread(times: Sequence[float]) -> float:
    """Return the distance between the quartiles of times, in their unit."""
    low, high = np.quantile(times, (0.25, 0.75))
    return float(high - low)
