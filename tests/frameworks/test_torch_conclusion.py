"""Once a model's step is decided, one line says what was decided, and `summary` needs no input."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from typing import Any

import pytest
from needs_torch import mt, torch
from step_clock import Clock

from mucudnn.errors import UsageError
from mucudnn.torch.choosing import answers
from mucudnn.torch.choosing.answers import LEFT_TO_PYTORCH, Answer
from mucudnn.torch.layers.settings import conclusion

nn = torch.nn
DIVIDED, ALGORITHM = Answer(0.5, is_divided=True, saved_ms=30.0), Answer(0.3, saved_ms=10.0)


@pytest.fixture(autouse=True)
def _fresh(cache_path: Path) -> None:
    """Give each test a cache of its own."""


def say(
    monkeypatch: pytest.MonkeyPatch, decided: list[tuple[Answer, bool]], step_ms: dict[str, float]
) -> str:
    """Return the sentence about calls with these answers; True for those that the step leaves to PyTorch."""
    monkeypatch.setattr(answers, "find", lambda key: decided[key][0])
    calls: Any = [(0, place, is_stock) for place, (_, is_stock) in enumerate(decided)]
    return conclusion(calls, step_ms, 1.25)


def test_the_sentence_counts_the_calls_and_compares_the_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    decided = [(DIVIDED, False), (DIVIDED, True), (ALGORITHM, False), (LEFT_TO_PYTORCH, False)]
    assert say(monkeypatch, decided, {"choices": 75.0, "stock": 120.0, "mixture": 60.0}) == (
        "4 convolutions: 1 divided, 1 by another algorithm, 2 left to PyTorch; a step takes 60.00 ms instead "
        "of 120.0 ms (2.00×, predicted 1.50×); deciding took 1.2 s, on a quiet machine; "
        "mucudnn.torch.summary(model) shows more"
    )


def test_the_sentence_says_by_how_much_choices_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    assert say(monkeypatch, [(DIVIDED, True)], {"choices": 150.0, "stock": 100.0}).startswith(
        "1 convolution: 1 left to PyTorch; with the choices a step took 1.50× as long; deciding"
    )
    assert say(monkeypatch, [(LEFT_TO_PYTORCH, True)] * 2, {}).startswith(
        "2 convolutions: 2 left to PyTorch; deciding"
    )


@pytest.mark.parametrize(
    "step_ms",
    [{"choices": 1.0, "mixture": 2.0}, {"stock": 1.0}],
    ids=["without stock", "only stock"],
)
def test_the_sentence_compares_nothing_without_the_times_of_both_sides(
    monkeypatch: pytest.MonkeyPatch, step_ms: dict[str, float]
) -> None:
    assert say(monkeypatch, [(DIVIDED, False)], step_ms).startswith("1 convolution: 1 divided; deciding")


def test_the_sentence_says_how_many_convolutions_later_runs_measure_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = [(answer._replace(is_busy=True), False) for answer in (DIVIDED, LEFT_TO_PYTORCH)]
    assert "deciding took 1.2 s, on a busy machine: later runs measure 2 again; mucudnn" in say(
        monkeypatch, [*busy, (ALGORITHM, False)], {}
    )


def test_a_prediction_that_exceeds_the_step_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "predicted" not in say(monkeypatch, [(DIVIDED, False)], {"choices": 10.0, "stock": 20.0})


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


class Steps:
    """The steps of a small converted model, on a clock on which its choices take half of stock's time."""

    def __init__(self) -> None:
        torch.manual_seed(1)
        self.model = mt.convert(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)))
        self.comparison = self.model[0]._mucudnn.comparison
        self.clock = self.comparison._clock = Clock()
        self.stock_s = 2.0

    def run(self, count: int, x: torch.Tensor = X) -> None:
        for _ in range(count):
            self.model(x).square().sum().backward()
            self.clock.compute(self.stock_s if self.comparison._way == "stock" else 1.0)


def test_a_model_concludes_once_for_each_size(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mucudnn")
    steps = Steps()
    steps.run(20)
    [line] = [text for text in caplog.messages if "summary(model)" in text]
    assert line.startswith("2 convolutions: ")
    assert "a step takes 1000.0 ms instead of 2000.0 ms (2.00×" in line
    steps.run(20)
    assert sum("summary(model)" in text for text in caplog.messages) == 1
    steps.run(20, X[:1])
    assert sum("summary(model)" in text for text in caplog.messages) == 2


@pytest.mark.parametrize(("is_terminal", "log", "lines"), [(True, "", 1), (True, "off", 0), (False, "", 0)])
def test_a_terminal_shows_the_first_conclusion(
    is_terminal: bool,
    log: str,
    lines: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("MUCUDNN_LOG", log)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: is_terminal)
    steps = Steps()
    for x in (X, X[:1]):
        steps.run(20, x)
    assert capsys.readouterr().err.count("mucudnn: 2 convolutions: ") == lines


def test_a_summary_without_an_input_shows_the_step_that_was_decided() -> None:
    steps = Steps()
    with pytest.raises(UsageError, match=r"run some steps, or give an example input"):
        mt.summary(steps.model)
    steps.run(20)
    assert mt.summary(steps.model).choices == mt.summary(steps.model, X).choices


def test_a_summary_without_an_input_follows_the_result_of_the_comparison() -> None:
    steps = Steps()
    steps.run(3)
    steps.stock_s = 0.5
    steps.run(30)
    assert steps.comparison.result == "stock"
    choices = mt.summary(steps.model).choices
    assert len(choices) == 5
    assert all(choice.micro_batches is None for choice in choices)
