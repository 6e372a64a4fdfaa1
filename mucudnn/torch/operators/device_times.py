"""The times of PyTorch's work on a device, and interleaved comparisons of ways to do the same work."""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from mucudnn._native import (
    ClockReading,
    Engine,
    RunTime,
    UnfinishedError,
    are_disturbed,
    comparable_times,
    is_decided,
)
from mucudnn.arrays.devices import device_named
from mucudnn.measuring.budget import applied_budget
from mucudnn.measuring.source import InterleavedTimes

threads = torch.get_num_threads


@contextmanager
def quiet(device: str) -> Iterator[None]:
    """Disable gradients and autocast."""
    with torch.no_grad(), torch.autocast(device.partition(":")[0], enabled=False):
        yield


def time_interleaved(
    device: str, runs: Sequence[Callable[[], object]], rounds: int, budget_ms: float = math.inf
) -> InterleavedTimes:
    """Time rounds of all runs, after a round that does not count.

    The rounds end early if more would not change which run is the fastest, or if the budget is used up. If
    they were disturbed, more follow, for a limited time. See native/cudnn/tuning/estimate.hpp.
    Raises UnfinishedError if the budget ends first.
    """
    times: list[list[RunTime]] = [[] for _ in runs]
    with quiet(device):
        for run in runs:
            run()

        def add_round() -> float:
            added = [timed(device, run) for run in runs]
            for own, time in zip(times, added, strict=True):
                own.append(time)
            return wall_ms(added)

        for count in range(1, rounds + 1):
            add_round()
            if is_decided(comparable_times(times), count) or sum(map(wall_ms, times)) >= budget_ms:
                break
        ran_ms = sum(map(wall_ms, times))
        is_busy = wait_until_undisturbed(device, lambda: are_disturbed(times), add_round, ran_ms)
    return InterleavedTimes(comparable_times(times), is_busy)


def wait_until_undisturbed(
    device: str, is_disturbed: Callable[[], bool], add_runs: Callable[[], float], ran_ms: float
) -> bool:
    """Add runs until a measurement is undisturbed or the device's patience ends.

    Return whether it is still disturbed. `ran_ms` is the time of the runs so far; `add_runs` returns that of
    the runs that it adds. Raises UnfinishedError if the budget ends first.
    """
    if not is_disturbed():
        return False
    patience, budget, waited_ms = engine_of(device).patience, applied_budget(), 0.0
    most_ms = math.inf if budget is None else budget.most_wait_ms
    while (is_busy := is_disturbed()) and waited_ms < min(patience.ms, most_ms):
        waited_ms += add_runs()
    if patience.note(is_busy, ran_ms + waited_ms):
        raise UnfinishedError("the measurement is still disturbed")
    return is_busy


def wall_ms(times: Sequence[RunTime]) -> float:
    """Return the wall time of all runs together."""
    return sum(time.wall_ms for time in times)


def engine_of(device: str) -> Engine:
    """Return the engine that runs convolutions on a device."""
    return device_named(device, threads() if device == "cpu" else None).engine


def read_clocks(device: str) -> ClockReading:
    """Return a reading of the wall clock, and on a CPU of the clocks of all threads that compute."""
    engine = engine_of(device)
    engine.meet_team()
    return engine.read_clocks()


def timed(device: str, run: Callable[[], object]) -> RunTime:
    """Return the time of a call, or of its work on a GPU."""
    if device == "cpu":
        return engine_of(device).time(run, threads())
    before, after = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    before.record()
    run()
    after.record()
    after.synchronize()
    return RunTime(float(before.elapsed_time(after)), is_throttled=engine_of(device).is_throttled)
