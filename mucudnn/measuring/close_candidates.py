"""The close candidates of a race, measured again and interleaved, so that all of them see the same machine.

A race measures its candidates one after another, and a machine that becomes faster or busier meanwhile would
decide between those that differ little.
"""

from collections.abc import Iterable, Sequence

from mucudnn._native import LONG_RUN_MS, MOST_ROUNDS, RunTime, comparable_times, estimate, is_decided
from mucudnn.costs.records import STOCK, STOCK_SLICE, Measurement
from mucudnn.measuring.source import timed
from mucudnn.measuring.timers import RaceTimer

CLOSE = 1.12  # candidates that differ by more are far apart, as three rounds would show: see is_decided
_MOST = 3  # candidates
_FEWEST_ROUNDS = 3  # fewer say no more than the race


def find_close(rows: Iterable[Measurement], mini_batch: int, workspace: int) -> list[Measurement]:
    """Return the fastest measurements of races that differ little, at most three; [] if one is far ahead.

    Long runs are exact enough. Those that need more `workspace`, in bytes, cannot run.
    """
    fitting = [
        row
        for row in rows
        if row.time_ms
        and row.is_raced
        and row.algorithm not in (STOCK, STOCK_SLICE)
        and row.micro_batch <= mini_batch
        and row.workspace <= workspace
    ]
    fitting.sort(key=_sample_ms)
    close = [row for row in fitting if _sample_ms(row) < CLOSE * _sample_ms(fitting[0])][:_MOST]
    is_long = any((row.time_ms or 0.0) >= LONG_RUN_MS for row in close)
    return [] if is_long or len(close) < 2 else close


def measure_close(timer: RaceTimer, close: Sequence[Measurement], budget_ms: float) -> list[Measurement]:
    """Return new measurements of close candidates, or [] if they would exceed the budget or were disturbed.

    The rounds end as soon as they show which candidate is the fastest for a sample. Raises EngineError,
    UnfinishedError.
    """
    expected_ms = 2 * sum(row.time_ms or 0.0 for row in close)  # with the uncounted run
    if _FEWEST_ROUNDS * expected_ms > budget_ms:
        return []
    runs: list[list[RunTime]] = [[] for _ in close]
    spent_ms = 0.0
    for count in range(1, MOST_ROUNDS + 1):
        order = list(zip(runs, close, strict=True))
        for own, row in order if count % 2 else reversed(order):
            timing = timer.measure_once(row)
            own.append(RunTime(timing.wall_ms, timing.cpu_ms, timer.threads))
            spent_ms += 2 * timing.wall_ms
        times = [
            [ms / row.micro_batch for ms in own]
            for own, row in zip(comparable_times(runs), close, strict=True)
        ]
        if is_decided(times, count) or (count >= _FEWEST_ROUNDS and spent_ms >= budget_ms):
            break
    timings = [estimate(own, row.algorithm) for own, row in zip(runs, close, strict=True)]
    if any(timing.is_busy for timing in timings):
        return []
    return list(map(timed, close, timings))


def _sample_ms(row: Measurement) -> float:
    return (row.time_ms or 0.0) / row.micro_batch
