"""Candidates that differ little are measured interleaved, and small differences leave a kernel undivided."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
from cached_rows import KERNEL
from fake_engine import FakeAlgorithm, FakeEngine
from hypothesis import given
from hypothesis import strategies as st

from mucudnn._native import Engine, Timing
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import RACED, STOCK, SUCCESS, Measurement
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.close_candidates import CLOSE, find_close, measure_close
from mucudnn.measuring.runners import Race
from mucudnn.plans.decide import LEAST_SPEEDUP, keep_undivided
from mucudnn.solver import Configuration


class ChangingEngine(FakeEngine):
    """An engine on a machine that slows down and speeds up: `slowdown` has the factor of each measurement."""

    def __init__(self, slowdown: Callable[[int], float], **times: float) -> None:
        algorithms = {name: FakeAlgorithm(lambda n, ms=ms: n * ms) for name, ms in times.items()}  # type: ignore[misc]
        super().__init__(algorithms)
        self._slowdown = slowdown

    def measure(self, *arguments: Any, **more: Any) -> Timing:
        factor = self._slowdown(self.calls["measure"])
        timing = super().measure(*arguments, **more)
        ms = factor * timing.time_ms
        return Timing(ms, 3 * ms if timing.is_busy else ms, ms, timing.is_busy)


def times_of(engine: FakeEngine, cache: Cache, *, hurried: bool = False) -> dict[str, float | None]:
    """Race on the engine. Return the ms of each algorithm for the mini-batch, whatever the cache had."""
    bench = Bench(cast(Engine, engine), cache, Listener(), Race(is_hurried=hurried))
    benchmark(bench, [KERNEL], "undivided")
    return {row.algorithm: row.time_ms for row in cache.measurements(bench.machine, KERNEL)}


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache.in_memory(tmp_path / "none")


def test_a_machine_that_becomes_faster_during_a_race_does_not_decide_it(cache: Cache) -> None:
    engine = ChangingEngine(lambda made: 1.11 if made < 1 else 1.0, A=1.0, B=1.05)
    with cache:
        times = times_of(engine, cache)
    assert times == {"A": pytest.approx(8.0), "B": pytest.approx(8.4)}


@given(slowdowns=st.lists(st.floats(1.0, 2.0), min_size=1, max_size=12), b=st.floats(0.8, 1.25))
def test_nothing_is_left_to_measure_whatever_an_interleaved_comparison_changes(
    slowdowns: list[float], b: float
) -> None:
    engine = ChangingEngine(lambda made: slowdowns[made % len(slowdowns)], A=1.0, B=b, C=1.5)
    with Cache.in_memory(Path("none")) as cache:
        bench = Bench(cast(Engine, engine), cache, Listener(), Race())
        benchmark(bench, [KERNEL], "all")
        made = bench.made["measured"]
        benchmark(bench, [KERNEL], "all")
    assert bench.made["measured"] == made


def test_disturbed_comparisons_change_no_measurement(cache: Cache) -> None:
    engine = ChangingEngine(lambda made: 2.0 if made > 1 else 1.0, A=1.0, B=1.05)
    engine.is_busy = True
    with cache:
        assert times_of(engine, cache) == {"A": 8.0, "B": pytest.approx(8.4)}


def test_a_program_that_waits_pays_for_no_long_comparison(cache: Cache) -> None:
    engine = ChangingEngine(lambda made: 1.0, A=1.0, B=1.05)
    with cache:
        times_of(engine, cache, hurried=True)
    assert engine.calls["measure"] == 2


def row(algorithm: str, ms: float, size: int = 8, workspace: int = 0, notes: str = RACED) -> Measurement:
    return Measurement(size, algorithm, SUCCESS, workspace, notes, ms)


class CountingTimer:
    """A timer by which each run takes exactly the time in the cache, times a factor for each algorithm."""

    threads = 1

    def __init__(self, **factors: float) -> None:
        self.factors, self.rounds = factors, 0

    def measure_once(self, measured: Measurement) -> Timing:
        self.rounds += measured.algorithm == "A"
        ms = (measured.time_ms or 0.0) * self.factors.get(measured.algorithm, 1.0)
        return Timing(ms, ms, ms, False)


@pytest.mark.parametrize(("ratio", "rounds"), [(1.2, 3), (1.08, 5), (1.06, 7), (1.01, 15)])
def test_the_closer_the_candidates_the_more_rounds(ratio: float, rounds: int) -> None:
    timer = CountingTimer(B=ratio)
    measure_close(timer, [row("A", 1.0), row("B", 1.0)], budget_ms=1000.0)
    assert timer.rounds == rounds


@given(st.floats(0, 200))
def test_rounds_end_with_the_budget(budget_ms: float) -> None:
    timer = CountingTimer()
    again = measure_close(timer, [row("A", 1.0), row("B", 1.0)], budget_ms)
    assert bool(again) == (budget_ms >= 12)
    assert 4 * timer.rounds <= max(budget_ms + 4, 0)


def test_a_size_counts_by_its_time_for_a_sample() -> None:
    timer = CountingTimer()
    again = measure_close(timer, [row("A", 1.0, size=2), row("B", 4.4, size=8)], 1000.0)
    assert timer.rounds == 5
    assert [each.time_ms for each in again] == [1.0, 4.4]


def test_only_near_rows_of_races_that_can_run_are_close() -> None:
    rows = [
        row("A", 8.0), row("A", 2.1, size=2), row("B", 8.0 * CLOSE), row("C", 7.0, workspace=10),
        row(STOCK, 8.0), row("D", 17.0, size=16), row("E", 8.0, notes=""), row("F", 8.5), row("G", 8.6),
    ]  # fmt: skip
    assert [(each.algorithm, each.micro_batch) for each in find_close(rows, 8, 9)] == [
        ("A", 8), ("A", 2), ("F", 8),
    ]  # fmt: skip
    assert find_close([row("A", 100.0), row("B", 100.0)], 8, 0) == []
    assert find_close([row("A", 1.0), row("B", 2.0)], 8, 0) == []


@pytest.mark.parametrize(
    ("rows", "limit", "chosen"),
    [
        ([row("A", 4.0, 4), row("B", 8.2)], None, (("B", 8),)),
        ([row("A", 4.0, 4), row("B", 8.0 * LEAST_SPEEDUP + 0.1)], None, (("A", 4),) * 2),
        ([row("A", 4.0, 4), row("B", 8.1, workspace=9)], 8, (("A", 4),) * 2),
        ([row("A", 4.0, 4), row("B", 8.1), row(STOCK, 8.2)], None, ((STOCK, 8),)),
    ],
)
def test_a_kernel_stays_undivided_unless_that_costs_3_percent(
    rows: list[Measurement], limit: int | None, chosen: tuple[tuple[str, int], ...]
) -> None:
    part = rows[0].part()
    assert part is not None
    kept = keep_undivided(Configuration((part, part)), rows, KERNEL, limit)
    assert tuple((each.algorithm, each.micro_batch) for each in kept.parts) == chosen
