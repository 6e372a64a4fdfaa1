"""Timed calls of a program find measurements that do not hold, on a simulated machine."""

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any, cast

import pytest

from mucudnn._native import Engine, RunTime, parse_descriptor
from mucudnn.arrays.watch import SAMPLES, Watch
from mucudnn.costs.cache import Cache, default_path
from mucudnn.costs.records import SUCCESS, Machine, Measurement
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration, MicroConfiguration

KERNEL = Kernel(parse_descriptor("mb4_ic4ih5_oc4_kh3")[0], "forward")
HERE = Machine("host", "a device", "a library 1.0", 1)
MOST_CALLS = 1000


class Reading:
    """A reading of a simulated clock. The work after it is one call of the program."""

    def __init__(self, engine: "SimulatedEngine") -> None:
        self._engine = engine

    def until(self, after: "Reading", threads: int) -> RunTime:
        return self._engine.time_of_call()


class SimulatedEngine:
    """An engine whose calls take a time, up to 4 % more between other layers, and longer if disturbed."""

    kind, device, library, threads = "host", "a device", "a library 1.0", 1

    def __init__(self, true_ms: float, load: float) -> None:
        self._true_ms, self._load, self._random = true_ms, load, Random(7)
        self.timed_calls = 0

    def read_clocks(self) -> Reading:
        return Reading(self)

    def time_of_call(self) -> RunTime:
        self.timed_calls += 1
        cpu_ms = self._true_ms * self._random.uniform(1.0, 1.04)
        is_disturbed = self._random.random() < self._load
        return RunTime(cpu_ms + (3 * self._true_ms if is_disturbed else 0.0), cpu_ms)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cache]:
    monkeypatch.setenv("MUCUDNN_CACHE", str(tmp_path / "cache.sqlite"))
    with Cache.open(default_path()) as opened:
        yield opened


def run_calls(cache: Cache, *, cached_ms: float, true_ms: float, load: float = 0.0) -> Measurement:
    """Run a program whose calls take `true_ms`, and return the measurement afterwards."""
    cache.add(HERE, KERNEL, Measurement(4, "A", SUCCESS, 0, "", cached_ms))
    engine: Any = SimulatedEngine(true_ms, load)
    part = MicroConfiguration(4, "A", cached_ms, 0)
    watch = Watch.over(cast(Engine, engine), KERNEL, Configuration((part,)))
    assert watch is not None
    for _ in range(MOST_CALLS):
        watch.run(lambda: None, 0, 0, 0)
    [row] = cache.measurements(HERE, KERNEL)
    return row


@pytest.mark.parametrize("load", [0.0, 0.6])
@pytest.mark.parametrize("factor", [0.7, 1.45])
def test_calls_find_a_time_that_is_wrong(factor: float, load: float, cache: Cache) -> None:
    row = run_calls(cache, cached_ms=2.0, true_ms=2.0 * factor, load=load)
    assert row.busy_tries == 1
    assert row.seen_ms == pytest.approx(2.0 * factor, rel=0.05)
    assert row.time_ms == 2.0, "the time stays until the algorithm is measured again"


@pytest.mark.parametrize("load", [0.0, 0.9])
def test_calls_leave_a_right_time_alone(load: float, cache: Cache) -> None:
    row = run_calls(cache, cached_ms=2.0, true_ms=2.0, load=load)
    assert (row.busy_tries, row.seen_ms) == (0, None)


def test_a_new_measurement_forgets_the_contradiction(cache: Cache) -> None:
    run_calls(cache, cached_ms=2.0, true_ms=4.0)
    cache.add(HERE, KERNEL, Measurement(4, "A", SUCCESS, 0, "", 4.0))
    [row] = cache.measurements(HERE, KERNEL)
    assert (row.time_ms, row.busy_tries, row.seen_ms) == (4.0, 0, None)


@pytest.mark.parametrize(("predicted_ms", "calls"), [(0.5, 4 * SAMPLES), (100.0, SAMPLES)])
def test_the_shorter_the_calls_the_fewer_are_timed(predicted_ms: float, calls: int) -> None:
    part = MicroConfiguration(4, "A", predicted_ms, 0)
    engine: Any = SimulatedEngine(predicted_ms, 0.0)
    watch = Watch.over(cast(Engine, engine), KERNEL, Configuration((part,)))
    assert watch is not None
    for _ in range(calls):
        watch.run(lambda: None, 0, 0, 0)
    assert engine.timed_calls == SAMPLES


def test_calls_that_the_caches_decide_are_not_watched() -> None:
    part = MicroConfiguration(4, "A", 0.4, 0)
    assert Watch.over(cast(Engine, SimulatedEngine(0.4, 0.0)), KERNEL, Configuration((part,))) is None
