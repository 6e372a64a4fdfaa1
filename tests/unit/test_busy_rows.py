"""Choices of a busy moment are provisional: later runs measure their algorithms again."""

from pathlib import Path
from typing import cast

import pytest
from cached_rows import KERNEL, change_rows
from fake_engine import FakeAlgorithm, FakeEngine

from mucudnn._native import Engine
from mucudnn.cli.terminal import Terminal
from mucudnn.costs.cache import Cache
from mucudnn.costs.schema import MEASUREMENT
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.runners import Exhaustive, Race, Runner
from mucudnn.plans.decide import Limits
from mucudnn.plans.optimizer import optimize

RUNNERS = [Exhaustive(), Race()]


def engine(*, busy: bool, **times: float) -> FakeEngine:
    """Return an engine whose algorithms take these ms for each sample."""
    algorithms = {name: FakeAlgorithm(lambda n, ms=ms: n * ms) for name, ms in times.items()}  # type: ignore[misc]
    made = FakeEngine(algorithms)
    made.is_busy = busy
    return made


def run(cache: Cache, made: FakeEngine, runner: Runner, listener: Listener | None = None) -> tuple[str, int]:
    """Optimize in a new process. Return the algorithm and the number of measurements."""
    bench = Bench(cast(Engine, made), cache, listener or Listener(), runner)
    result = optimize(bench, [KERNEL], "undivided", Limits(), run=False)
    return result.decisions[0].divided.parts[0].algorithm, bench.made["measured"]


def let_time_pass(cache: Cache) -> None:
    change_rows(cache, MEASUREMENT, lambda _: {"measured_at": "2026-01-01T00:00:00+00:00"})


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache.in_memory(tmp_path / "none")


@pytest.mark.parametrize("runner", RUNNERS)
def test_a_wrong_choice_of_a_busy_moment_is_put_right(cache: Cache, runner: Runner) -> None:
    with cache:
        assert run(cache, engine(busy=True, A=1.5, B=1.2), runner)[0] == "B"
        quiet = engine(busy=False, A=1.0, B=1.2)
        assert run(cache, quiet, runner) == ("B", 0), "soon afterwards the machine may still be busy"
        let_time_pass(cache)
        assert run(cache, quiet, runner) == ("A", 2)
        let_time_pass(cache)
        assert run(cache, quiet, runner) == ("A", 0), "undisturbed measurements stay"


def test_what_a_busy_moment_puts_far_behind_is_measured_again_too(cache: Cache) -> None:
    with cache:
        run(cache, engine(busy=True, A=1.0, B=9.0), Exhaustive())
        let_time_pass(cache)
        assert run(cache, engine(busy=False, A=1.0, B=0.5), Exhaustive()) == ("B", 2)


def test_a_later_run_says_how_many_measurements_it_makes_again(
    cache: Cache, capsys: pytest.CaptureFixture[str]
) -> None:
    with cache:
        run(cache, engine(busy=True, A=1.0), Exhaustive())
        let_time_pass(cache)
        run(cache, engine(busy=False, A=1.0, B=2.0), Exhaustive(), Terminal())
    assert "1 of them again because other programs disturbed the last run" in capsys.readouterr().err


def test_a_machine_that_stays_busy_measures_more_and_more_seldom(cache: Cache) -> None:
    with cache:
        for tries in range(1, 4):
            run(cache, engine(busy=True, A=1.0), Exhaustive())
            [row] = cache.measurements(cache.machines()[0], KERNEL)
            assert row.busy_tries == tries
            let_time_pass(cache)
