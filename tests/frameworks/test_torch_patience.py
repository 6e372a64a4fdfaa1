"""Without a budget, a program waits for a quiet machine in several steps, and in none of them for long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from needs_torch import mt, torch

from mucudnn._native import Patience, RunTime, Timing, estimate
from mucudnn.costs.cache import Cache, default_path
from mucudnn.costs.schema import MEASUREMENT
from mucudnn.measuring.budget import PacedBudget
from mucudnn.measuring.runners import Task
from mucudnn.measuring.timers import RaceTimer
from mucudnn.torch.choosing import answers
from mucudnn.torch.operators import device_times, stock

X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))
WORK_S, EARNED_S = 0.1, 0.15  # the seconds that a step works, and that it earns for measurements
RUN_S = 0.02
MOST_STEPS = 100


class Machine:
    """A machine with a simulated clock, on which other programs disturb the first `disturbed` runs."""

    def __init__(self, disturbed: float) -> None:
        self.now, self.runs, self.disturbed = 0.0, 0, disturbed

    def __call__(self) -> float:
        return self.now

    def time(self, device: str, run: Callable[[], object]) -> RunTime:
        run()
        self.now += RUN_S
        self.runs += 1
        cpu_s = 0.1 * RUN_S if self.runs <= self.disturbed else 2 * RUN_S
        return RunTime(RUN_S * 1e3, cpu_s * 1e3, 2)


@pytest.fixture
def patience(cache_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Patience]:
    """Time PyTorch's own convolutions as if on two threads, and let the engine's be far slower."""

    def far_behind(timer: RaceTimer, task: Task) -> Timing:
        return estimate([RunTime(1e3, 1e3)], task.algorithm)

    monkeypatch.setattr(device_times, "threads", lambda: 2)
    monkeypatch.setattr(stock, "_threads", lambda: 2)
    monkeypatch.setattr(stock.TorchTimer, "_time_on_one_thread", lambda timer, run, disturbed: disturbed)
    monkeypatch.setattr(RaceTimer, "measure", far_behind)
    patience = device_times.engine_of("cpu").patience
    patience.note(False, 0.0)
    yield patience
    patience.note(False, 0.0)


def measured_in_steps(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Run steps until a layer is decided. Return the seconds of the measured runs of each step."""
    monkeypatch.setattr(device_times, "timed", machine.time)
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3))
    mt.convert(model)
    model[0]._mucudnn.sightings._pace = PacedBudget(machine)
    measured = []
    with torch.no_grad():
        while not answers._answers.everything():
            before = machine.runs
            model(X)
            machine.now += WORK_S
            measured.append((machine.runs - before) * RUN_S)
            assert len(measured) < MOST_STEPS
    return measured


def busy_tries() -> list[int]:
    with Cache.open(default_path()) as cache:
        return [row["busy_tries"] for row in cache.select(MEASUREMENT) if row["algorithm"] == "STOCK"]


def test_all_steps_together_wait_as_long_as_the_patience_lasts(
    patience: Patience, monkeypatch: pytest.MonkeyPatch
) -> None:
    most_ms = patience.ms
    measured = measured_in_steps(Machine(disturbed=float("inf")), monkeypatch)
    assert max(measured) <= 2 * EARNED_S, "of this step and of the one before"
    assert sum(measured) * 1e3 >= most_ms
    assert busy_tries() == [1]
    assert patience.ms == most_ms / 2, "after waiting without success the next wait is shorter"


def test_a_later_step_measures_undisturbed(patience: Patience, monkeypatch: pytest.MonkeyPatch) -> None:
    most_ms = patience.ms
    measured = measured_in_steps(Machine(disturbed=10), monkeypatch)
    assert sum(seconds > 0 for seconds in measured) > 1
    assert sum(measured) * 1e3 < most_ms
    assert busy_tries() == [0]
    assert patience.ms == most_ms


def test_a_named_budget_waits_in_one_step(patience: Patience, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MUCUDNN_BUDGET", "60s")
    most_ms = patience.ms
    measured = measured_in_steps(Machine(disturbed=float("inf")), monkeypatch)
    assert max(measured) * 1e3 >= most_ms
    assert busy_tries() == [1]
