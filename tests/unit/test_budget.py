"""Measurements end with their budget, the best choices so far are made, and later runs make the rest."""

import math
from pathlib import Path
from typing import cast

import pytest
from fake_engine import FakeEngine
from hypothesis import given
from hypothesis import strategies as st
from optimizer_cases import KERNELS, run
from recorder import Recorder

from mucudnn._native import Engine
from mucudnn.costs.cache import Cache
from mucudnn.costs.schema import COMPARISON
from mucudnn.errors import UsageError
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.budget import Budget, PacedBudget, current_budget, parse_budget, spell_budget
from mucudnn.measuring.measure import find_missing, measure
from mucudnn.measuring.runners import Exhaustive, Race, Runner
from mucudnn.plans.result import Result, to_json


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "cache.sqlite"


def run_within(
    path: Path, runner: Runner, seconds: float, listener: Listener | None = None
) -> tuple[Result, int]:
    """Optimize on an engine whose measurements take a second each. Return their number as well."""
    engine = FakeEngine()
    with Budget(seconds, lambda: engine.calls["measure"]).applied():
        result = run(path, engine, listener, runner=runner)
    return result, engine.calls["measure"]


RUNNERS = [Exhaustive(), Race()]


@pytest.mark.parametrize("runner", RUNNERS)
@pytest.mark.parametrize("seconds", range(0, 18, 3))
def test_each_kernel_has_an_undivided_algorithm_whatever_the_budget(
    path: Path, runner: Runner, seconds: int
) -> None:
    result, measured = run_within(path, runner, seconds)
    assert len(result.decisions) == len(KERNELS)
    assert all(decision.undivided is not None for decision in result.decisions)
    # A kernel may need each of its two algorithms to have one that runs undivided.
    assert measured <= seconds + 2 * len(KERNELS)


@pytest.mark.parametrize("runner", RUNNERS)
def test_runs_with_a_budget_come_to_the_choices_of_one_without(
    path: Path, tmp_path: Path, runner: Runner
) -> None:
    wanted, _ = run_within(tmp_path / "other.sqlite", runner, math.inf)
    for _ in range(20):
        result, _ = run_within(path, runner, 4)
        if result.new_measurements == 0:
            break
    assert result.new_measurements == 0
    assert to_json(result) == {**to_json(wanted), "new_measurements": 0}


def test_the_user_learns_once_that_the_budget_is_spent(path: Path) -> None:
    for seconds, count in ((2, 1), (math.inf, 0)):
        listener = Recorder()
        run_within(path, Exhaustive(), seconds, listener)
        assert sum("is spent: the best choices so far" in text for text in listener.messages) == count
    assert spell_budget(2) == "2s"


def test_nothing_is_compared_after_the_budget_is_spent(path: Path) -> None:
    run_within(path, Exhaustive(), 2)
    with Cache.open(path) as cache:
        assert cache.select(COMPARISON) == []


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30),
        ("30", 30),
        (" 1.5 min ", 90),
        ("2h", 7200),
        ("250ms", 0.25),
        ("0s", 0),
        ("none", math.inf),
    ],
)
def test_a_budget_is_read(text: str, seconds: float) -> None:
    assert parse_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "s", "-1s", "1 week", "1e3", "nan", "inf", "30 S", "9" * 400])
def test_what_is_not_a_budget_is_an_error(text: str) -> None:
    with pytest.raises(UsageError, match="is not a budget: give seconds"):
        parse_budget(text)


def test_the_variable_gives_the_process_one_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUCUDNN_BUDGET", "7s")
    assert current_budget().seconds == 7
    assert current_budget() is current_budget()
    with Budget(3).applied():
        assert current_budget().seconds == 3
    monkeypatch.setenv("MUCUDNN_BUDGET", "soon")
    with pytest.raises(UsageError, match="MUCUDNN_BUDGET: 'soon' is not a budget"):
        current_budget()


def test_blocks_within_a_counted_block_are_not_counted_twice() -> None:
    now = 0.0
    budget = Budget(10, lambda: now)
    with budget.spending():
        with budget.spending():
            now += 4
        now += 4
    now += 100  # the program itself
    assert not budget.is_spent
    with budget.spending():
        now += 2
        assert budget.is_spent
    assert budget.is_spent


@given(st.lists(st.tuples(st.floats(0, 100), st.floats(0, 3)), max_size=30))
def test_a_paced_budget_spends_in_proportion_to_the_programs_own_work(
    calls: list[tuple[float, float]],
) -> None:
    now = own_s = spent_s = 0.0
    budget = PacedBudget(lambda: now)
    for work_s, measuring_s in calls:
        budget.note_call()
        while not budget.is_spent and measuring_s > 0:
            with budget.spending():
                now += measuring_s
            spent_s += measuring_s
            measuring_s /= 2
            if measuring_s < 0.1:
                break
        assert spent_s <= 1.5 * own_s + 3 + 1e-6
        now += work_s
        own_s += work_s


def test_looking_for_what_to_measure_does_not_spend_what_short_steps_earn() -> None:
    now = measured_s = 0.0
    budget = PacedBudget(lambda: now)
    for _ in range(1000):
        now += 0.0003  # the program's own work
        budget.note_call()
        if budget.is_spent:
            continue
        with budget.spending():
            now += 0.003
            while not budget.is_spent:
                now += 0.002
                measured_s += 0.002
    assert measured_s > 0.3


def test_a_block_that_began_without_a_turn_measures_nothing() -> None:
    now = 0.0
    budget = PacedBudget(lambda: now)
    budget.note_call()
    now += 0.01
    budget.note_call()
    assert budget.seconds > 0
    with budget.spending():
        assert budget.is_spent


def test_a_pause_of_a_program_earns_no_more_than_some_seconds() -> None:
    now = 0.0
    budget = PacedBudget(lambda: now)
    budget.note_call()
    assert budget.is_spent
    now += 3600
    budget.note_call()
    assert 0 < budget.seconds < 30


@pytest.mark.parametrize("runner", RUNNERS)
def test_within_a_paced_budget_that_is_spent_nothing_is_measured(path: Path, runner: Runner) -> None:
    engine = FakeEngine()
    with PacedBudget().applied(), Cache.open(path) as cache:
        bench = Bench(cast(Engine, engine), cache, Listener(), runner)
        measure(bench, find_missing(bench, KERNELS, "power_of_two"))
    assert engine.calls["measure"] == 0
