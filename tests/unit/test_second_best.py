"""An algorithm whose time hides it runs beside a program's calls, seldom and into memory of its own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import mucudnn
from mucudnn._native import Engine, RunTime, parse_descriptor
from mucudnn.arrays import second_best
from mucudnn.arrays.second_best import CALLS, RUNS, list_others
from mucudnn.arrays.watch import Watch
from mucudnn.costs import checks
from mucudnn.costs.cache import Cache, default_path
from mucudnn.costs.records import STOCK, SUCCESS, Machine, Measurement
from mucudnn.measuring.bench import machine_of
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration, MicroConfiguration

KERNEL = Kernel(parse_descriptor("mb8_ic4ih5_oc4_kh3")[0], "forward")
HERE = Machine("host", "a device", "a library 1.0", 1)
CHOSEN = MicroConfiguration(8, "A", 2.0, 0)
SOME_HUNDRED = 700


class Reading:
    def __init__(self, engine: SimulatedEngine) -> None:
        self._engine, self._since_ms = engine, engine.now_ms

    def until(self, after: Reading, threads: int) -> RunTime:
        cpu_ms = after._since_ms - self._since_ms
        waited_ms = 3 * cpu_ms if self._engine.random.random() < self._engine.load else 0.0
        return RunTime(cpu_ms + waited_ms, cpu_ms)


class SimulatedEngine:
    """An engine on a machine under load. `ms` has the true times of the algorithms."""

    kind, device, library, threads = "host", "a device", "a library 1.0", 1

    def __init__(self, load: float = 0.0, **ms: float) -> None:
        self.ms, self.load, self.random = ms, load, Random(7)
        self.now_ms = self.others_ms = 0.0
        self.ran: list[str] = []

    def read_clocks(self) -> Reading:
        return Reading(self)

    def compute(self, algorithm: str) -> float:
        took_ms = self.ms[algorithm] * self.random.uniform(1.0, 1.04)
        self.now_ms += took_ms
        return took_ms

    def allocate(self, size: int) -> int:
        return size

    def borrow(self, address: int, size: int) -> int:
        return size

    def prepare(self, kernel: Kernel, slices: tuple[tuple[int, str], ...]) -> SimulatedDivision:
        [(_, algorithm)] = slices
        return SimulatedDivision(self, algorithm)


class SimulatedDivision:
    workspace = 0

    def __init__(self, engine: SimulatedEngine, algorithm: str) -> None:
        self._engine, self._algorithm = engine, algorithm

    def execute(self, *memory: object) -> None:
        self._engine.ran.append(self._algorithm)
        self._engine.others_ms += self._engine.compute(self._algorithm)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cache]:
    monkeypatch.setenv("MUCUDNN_CACHE", str(tmp_path / "cache.sqlite"))
    with Cache.open(default_path()) as opened:
        yield opened


def measured(algorithm: str, ms: float, size: int = 8, workspace: int = 0) -> Measurement:
    return Measurement(size, algorithm, SUCCESS, workspace, "", ms)


def run_calls(
    cache: Cache, engine: SimulatedEngine, calls: int, *others: Measurement, limit: int | None = None
) -> set[str]:
    """Run calls of A, which has these others. Return the algorithms whose times are in doubt afterwards."""
    rows = [measured("A", 2.0), *others]
    for row in rows:
        cache.add(HERE, KERNEL, row)
    made: Any = engine
    watch = Watch.over(made, KERNEL, Configuration((CHOSEN,)), rows, limit)
    assert watch is not None
    for _ in range(calls):
        watch.run(lambda: engine.compute("A") and None, 0, 0, 0)
    return {row.algorithm for row in cache.measurements(HERE, KERNEL) if row.busy_tries}


@pytest.mark.parametrize("load", [0.0, 0.8])
def test_a_time_that_is_1_3_times_too_high_is_found_within_some_hundred_calls(
    cache: Cache, load: float
) -> None:
    engine = SimulatedEngine(load, A=2.0, B=1.7)
    assert run_calls(cache, engine, SOME_HUNDRED, measured("B", 1.3 * 1.7)) == {"B"}
    [row] = [row for row in cache.measurements(HERE, KERNEL) if row.algorithm == "B"]
    assert row.seen_ms == pytest.approx(1.7, rel=0.05)
    assert row.time_ms == pytest.approx(1.3 * 1.7), "the time stays until a later process measures again"


@pytest.mark.parametrize("load", [0.0, 0.9])
def test_right_times_are_left_alone(cache: Cache, load: float) -> None:
    engine = SimulatedEngine(load, A=2.0, B=2.2, C=3.0)
    assert not run_calls(cache, engine, 5000, measured("B", 2.2), measured("C", 3.0))
    assert {*engine.ran} == {"B", "C"}, "one algorithm after another"


@given(
    st.lists(st.tuples(st.sampled_from("BCD"), st.sampled_from([1, 4, 8]), st.floats(0.1, 9.0)), max_size=9)
)
def test_the_others_cost_less_than_a_hundredth_of_the_calls(others: list[tuple[str, int, float]]) -> None:
    rows = [measured(name, ms * size / 8, size) for name, size, ms in others]
    engine: Any = SimulatedEngine(A=2.0, B=4.0, C=4.0, D=4.0)
    watch = Watch.over(engine, KERNEL, Configuration((CHOSEN,)), rows)
    assert watch is not None
    engine.ms.update({part.algorithm: part.time_ms for part in list_others(rows, Configuration((CHOSEN,)))})
    for _ in range(3 * CALLS):
        watch.run(lambda: None, 0, 0, 0)
    assert engine.others_ms <= 2 * 4.0 + 0.01 * 3 * CALLS * 2.0, "no more than a first run and the share"


def test_only_algorithms_near_the_choice_run_and_the_nearest_first() -> None:
    rows = [
        measured("A", 2.0), measured("A", 0.6, 2), measured("B", 3.0), measured("B", 1.2, 4),
        measured("C", 4.1), measured(STOCK, 2.1), Measurement(8, "D", "CUDNN_STATUS_NOT_SUPPORTED", 0),
    ]  # fmt: skip
    others = list_others(rows, Configuration((CHOSEN,)))
    assert [(part.algorithm, part.micro_batch) for part in others] == [("A", 2), ("B", 4)]


def test_what_needs_more_than_the_limit_with_its_result_does_not_run(cache: Cache) -> None:
    result = 4 * KERNEL.problem.y_elements
    for limit, ran in ((result - 1, False), (result, True), (None, True)):
        engine = SimulatedEngine(A=2.0, B=2.0)
        run_calls(cache, engine, 2 * CALLS, measured("B", 2.2), limit=limit)
        assert bool(engine.ran) == ran


def test_an_algorithm_that_fails_leaves_the_calls_alone(cache: Cache) -> None:
    engine = SimulatedEngine(A=2.0, C=1.0)

    def prepare(kernel: Kernel, slices: tuple[tuple[int, str], ...]) -> SimulatedDivision:
        if slices[0][1] == "B":
            raise MemoryError
        return SimulatedDivision(engine, slices[0][1])

    engine.prepare = prepare  # type: ignore[method-assign]
    assert run_calls(cache, engine, 5000, measured("B", 2.1), measured("C", 2.2)) == {"C"}


@pytest.mark.parametrize("pass_", ["forward", "backward_data", "backward_filter"])
def test_a_program_gets_the_same_bits_and_a_real_engine_finds_the_wrong_time(
    pass_: str, cache_path: Path, monkeypatch: pytest.MonkeyPatch, engine: Engine
) -> None:
    monkeypatch.setattr(second_best, "CALLS", 1)
    monkeypatch.setattr(checks, "MOST_COST", 1e9)
    problem = parse_descriptor("mb2_ic4ih9_oc4_kh3_ph1")[0]
    kernel = Kernel(problem, pass_)
    candidates = [candidate for candidate in engine.enumerate(kernel) if candidate.status == SUCCESS]
    with Cache.open(cache_path) as cache:
        for place, candidate in enumerate(candidates):
            ms = 1.5e4 if place else 1e4
            row = Measurement(2, candidate.algorithm, SUCCESS, candidate.workspace, "raced", ms)
            cache.add(machine_of(engine), kernel, row)
    monkeypatch.setenv("MUCUDNN_BATCH_POLICY", "undivided")
    random = np.random.default_rng(1)
    x, w = (random.standard_normal(shape, np.float32) for shape in ((2, 4, 9, 9), (4, 4, 3, 3)))
    y = random.standard_normal((2, 4, 9, 9), np.float32)

    def call() -> np.ndarray:
        if pass_ == "forward":
            return mucudnn.convolution_forward(x, w, padding=1)
        if pass_ == "backward_data":
            return mucudnn.convolution_backward_data(y, w, x.shape, padding=1)
        return mucudnn.convolution_backward_filter(x, y, w.shape, padding=1)

    inputs = [tensor.copy() for tensor in (x, w, y)]
    results = [call() for _ in range(RUNS * len(candidates))]
    assert all(np.array_equal(result, results[0]) for result in results)
    assert all(np.array_equal(*pair) for pair in zip((x, w, y), inputs, strict=True))
    with Cache.open(cache_path) as cache:
        doubted = {row.algorithm for row in cache.measurements(machine_of(engine), kernel) if row.seen_ms}
    assert doubted >= {candidate.algorithm for candidate in candidates[1:]}
