"""Without a budget, the decisions of a program take time in proportion to its own work."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from cached_rows import change_rows, times_in
from needs_torch import mt, torch

from mucudnn.arrays import choosing, dispatch
from mucudnn.costs.cache import Cache, default_path
from mucudnn.costs.schema import MEASUREMENT
from mucudnn.errors import MucudnnWarning
from mucudnn.listener import ProgressBar
from mucudnn.measuring.budget import PacedBudget
from mucudnn.measuring.timers import RaceTimer
from mucudnn.torch.choosing import answers, decision

nn = torch.nn
X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
WORK_S, MEASUREMENT_S = 0.5, 0.2  # a layer with its gradients, and a measurement
MOST_STEPS = 100


class Clock:
    """A clock that a layer's work and measurements move on."""

    def __init__(self) -> None:
        self.now = self.measured_s = 0.0

    def __call__(self) -> float:
        return self.now

    def measure(self) -> None:
        self.now += MEASUREMENT_S
        self.measured_s += MEASUREMENT_S


@pytest.fixture
def clock(cache_path: Path, monkeypatch: pytest.MonkeyPatch) -> Clock:
    made, measure = Clock(), RaceTimer.measure

    def measure_on_clock(timer: RaceTimer, task: Any) -> Any:
        made.measure()
        return measure(timer, task)

    monkeypatch.setattr(RaceTimer, "measure", measure_on_clock)
    return made


def converted(clock: Clock, **options: Any) -> nn.Module:
    """Return a converted network whose layers work on the clock."""
    torch.manual_seed(1)
    sizes = (3, 4, 5, 6)
    model = nn.Sequential(*(nn.Conv2d(a, b, 3, padding=1) for a, b in pairwise(sizes)))
    mt.convert(model, **options)
    model[0]._mucudnn.sightings._pace = PacedBudget(clock)
    return model


def step(clock: Clock, model: nn.Module) -> torch.Tensor:
    x = X.clone().requires_grad_()
    y = x
    for layer in model:
        y = layer(y)
        clock.now += WORK_S
    y.square().sum().backward()
    return y.detach()


def steps_until_decided(clock: Clock, model: nn.Module) -> list[float]:
    """Run steps until all layers are decided. Return the seconds that each step measured."""
    measured = []
    while len(answers._answers.everything()) < len(model):
        before = clock.measured_s
        step(clock, model)
        measured.append(clock.measured_s - before)
        assert len(measured) < MOST_STEPS
    return measured


@pytest.mark.parametrize(
    "options", [{}, {"workspace": "1MiB"}, {"numerics": "strict"}], ids=["free", "limit", "strict"]
)
def test_no_step_measures_much_longer_than_the_program_works(clock: Clock, options: dict[str, Any]) -> None:
    model = converted(clock, **options)
    measured = steps_until_decided(clock, model)
    for count in range(1, len(measured) + 1):
        assert sum(measured[:count]) <= 1.5 * count * len(model) * WORK_S + MEASUREMENT_S
    assert len(measured) > 1, "the first step has no time for everything"


@pytest.mark.parametrize("options", [{}, {"workspace": "1MiB"}], ids=["free", "limit"])
def test_paced_decisions_measure_the_same_as_decisions_at_once(
    clock: Clock, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def kept() -> set[tuple[str, str]]:
        with Cache.open(default_path()) as cache:
            return {(row["problem"], row["pass"]) for row in cache.select(MEASUREMENT)}

    steps_until_decided(clock, converted(clock, **options))
    paced = kept()
    monkeypatch.setenv("MUCUDNN_CACHE", str(tmp_path / "other.sqlite"))
    monkeypatch.setattr(dispatch, "_prepared", dispatch.Recent(4096))
    monkeypatch.setattr(answers, "_answers", dispatch.Recent(2048))
    at_once = converted(clock, budget="none", **options)
    assert len(steps_until_decided(clock, at_once)) == 1
    assert kept() == paced


def test_until_there_is_time_pytorch_runs_a_call_without_a_limit(clock: Clock) -> None:
    model = converted(clock)
    own = nn.Sequential(*(nn.Conv2d(layer.in_channels, layer.out_channels, 3, padding=1) for layer in model))
    own.load_state_dict(model.state_dict())
    assert torch.equal(model[0](X), own[0](X))
    assert not dispatch._prepared


def test_until_there_is_time_a_model_chooses_within_a_limit_and_later_steps_decide_again(
    clock: Clock,
) -> None:
    model = converted(clock, workspace="1MiB")
    model(X).sum().backward()
    modelled = [*dispatch._prepared.everything().values()]
    assert {ready.call.pass_ for ready in modelled} == {"forward", "backward_data", "backward_filter"}
    assert all(ready.call.promise.choice == "fixed" and ready.workspace <= 2**20 for ready in modelled)
    assert clock.measured_s == 0
    steps_until_decided(clock, model)
    assert any(ready.call.promise.choice == "measured" for ready in dispatch._prepared.everything().values())


def test_a_call_that_has_to_wait_is_prepared_once(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare, prepared = dispatch._prepare, []

    def note(*arguments: Any) -> Any:
        prepared.append(arguments)
        return prepare(*arguments)

    monkeypatch.setattr(dispatch, "_prepare", note)
    model = converted(clock, workspace="1MiB")
    for _ in range(9):
        model[0](X).sum().backward()  # the clock stands still
    assert len(prepared) == 2, "the forward pass and the filter gradient"


def test_a_later_process_decides_from_the_cache_in_its_first_step(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    for options in ({}, {"workspace": "1MiB"}):
        steps_until_decided(clock, converted(clock, **options))
        monkeypatch.setattr(dispatch, "_prepared", dispatch.Recent(4096))
        monkeypatch.setattr(answers, "_answers", dispatch.Recent(2048))
        before = clock.measured_s
        assert len(steps_until_decided(clock, converted(clock, **options))) == 1
        assert clock.measured_s == before
        monkeypatch.setattr(answers, "_answers", dispatch.Recent(2048))


def test_a_later_process_measures_again_what_was_disturbed_before_it_decides(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps_until_decided(clock, converted(clock))
    with Cache.open(default_path()) as cache:
        disturbed, old = len(times_in(cache)), {"measured_at": "2026-01-01T00:00:00+00:00"}
        change_rows(
            cache,
            MEASUREMENT,
            lambda row: old | ({"busy_tries": 1, "time_ms": 30 * row["time_ms"]} if row["time_ms"] else {}),
        )
    monkeypatch.setattr(dispatch, "_prepared", dispatch.Recent(4096))
    monkeypatch.setattr(answers, "_answers", dispatch.Recent(2048))
    measured = steps_until_decided(clock, converted(clock))
    assert sum(measured) >= MEASUREMENT_S
    assert len(measured) > 1, "the first step has no time for everything"
    with Cache.open(default_path()) as cache:
        assert len([row for row in times_in(cache) if row["measured_at"] < "2026-02"]) < disturbed


def test_a_summary_with_an_input_decides_at_once(clock: Clock) -> None:
    model = converted(clock, workspace="1MiB")
    model(X)
    choices = mt.summary(model, X).choices
    assert all(choice.micro_batches is not None for choice in choices)
    assert all(answer.is_final for answer in answers._answers.everything().values())
    assert len(answers._answers.everything()) == len(model)


def test_a_budget_that_cannot_be_read_leaves_the_calls_to_pytorch(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUCUDNN_BUDGET", "soon")
    model = converted(clock)
    with pytest.warns(MucudnnWarning, match="MUCUDNN_BUDGET: 'soon' is not a budget"):
        step(clock, model)


def test_looking_for_a_call_in_the_cache_earns_no_time(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def look(*arguments: Any) -> bool:
        clock.now += 1.0
        return False

    monkeypatch.setattr(decision, "is_measured", look)
    model = converted(clock)
    for layer in model:
        layer(torch.randn(2, layer.in_channels, 8, 8))
    assert clock.now == len(model)
    assert model[0]._mucudnn.sightings._pace.seconds == 0


def test_a_program_that_waits_for_measurements_sees_no_progress_bar(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ProgressBar, "track", lambda *_: pytest.fail("a bar for a few milliseconds"))
    steps_until_decided(clock, converted(clock))


def test_a_call_without_time_looks_for_nothing_to_measure(
    clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(choosing, "benchmark", lambda *_, **__: pytest.fail("there is no time"))
    converted(clock, workspace="1MiB")[0](X)


def test_threads_may_decide_at_once() -> None:
    budget = PacedBudget()
    first, second = budget.spending(), budget.spending()
    with first:
        budget._since = None  # another thread has not seen the first block yet
        with second:
            pass
    assert not budget.is_spent or budget.seconds == 0
