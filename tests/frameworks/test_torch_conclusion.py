"""Once a model's step is decided, one line says what was decided, and `summary` needs no input."""

from __future__ import annotations

import io
import logging
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from needs_torch import mt, torch
from step_clock import Clock

from mucudnn.errors import UsageError
from mucudnn.torch.choosing import answers
from mucudnn.torch.choosing.answers import LEFT_TO_PYTORCH, Answer
from mucudnn.torch.choosing.sightings import Sightings
from mucudnn.torch.layers.settings import conclusion

nn = torch.nn
DIVIDED, ALGORITHM = Answer(0.5, is_divided=True), Answer(0.3)


@pytest.fixture(autouse=True)
def _fresh(cache_path: Path) -> None:
    """Give each test a cache of its own."""


def say(
    monkeypatch: pytest.MonkeyPatch, decided: list[tuple[Answer, bool]], step_ms: dict[str, float]
) -> str:
    """Return the sentence about calls with these answers; True for those that the step leaves to PyTorch."""
    monkeypatch.setattr(answers, "find", lambda key: decided[key][0])
    calls: Any = [(0, place, is_stock) for place, (_, is_stock) in enumerate(decided)]
    return conclusion(calls, step_ms, 14, 1.25)


def test_the_sentence_counts_the_calls_and_compares_the_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    decided = [(DIVIDED, False), (DIVIDED, True), (ALGORITHM, False), (LEFT_TO_PYTORCH, False)]
    assert say(monkeypatch, decided, {"choices": 75.0, "stock": 120.0, "mixture": 60.0}) == (
        "2.00 times as fast as PyTorch's own convolutions (60.00 ms a step instead of 120.0 ms); "
        "4 convolutions: 1 divided, 1 by another algorithm, 2 left to PyTorch; chose in 14 steps and 1.2 s, "
        "on a quiet machine; mucudnn.torch.summary(model) shows more"
    )


def test_the_sentence_says_by_how_much_choices_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    assert say(monkeypatch, [(DIVIDED, True)], {"choices": 150.0, "stock": 100.0}).startswith(
        "mucudnn's choices took 1.50 times as long as PyTorch's own convolutions; 1 convolution: 1 left to "
        "PyTorch; chose"
    )
    assert say(monkeypatch, [(LEFT_TO_PYTORCH, True)] * 2, {}).startswith(
        "2 convolutions: 2 left to PyTorch; chose"
    )


@pytest.mark.parametrize(
    "step_ms",
    [{"choices": 1.0, "mixture": 2.0}, {"stock": 1.0}],
    ids=["without stock", "only stock"],
)
def test_the_sentence_compares_nothing_without_the_times_of_both_sides(
    monkeypatch: pytest.MonkeyPatch, step_ms: dict[str, float]
) -> None:
    assert say(monkeypatch, [(DIVIDED, False)], step_ms).startswith("1 convolution: 1 divided; chose")


def test_the_sentence_says_how_many_convolutions_later_runs_measure_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    busy = [(answer._replace(is_busy=True), False) for answer in (DIVIDED, LEFT_TO_PYTORCH)]
    assert "chose in 14 steps and 1.2 s, on a busy machine: later runs measure 2 again; mucudnn" in say(
        monkeypatch, [*busy, (ALGORITHM, False)], {}
    )


def test_a_gain_that_is_too_small_to_keep_is_not_called_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "faster" not in say(monkeypatch, [(DIVIDED, True)], {"choices": 99.5, "stock": 100.0})


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
    assert line.startswith(
        "2.00 times as fast as PyTorch's own convolutions (1000.0 ms a step instead of 2000.0 ms)"
    )
    steps_taken = re.search(r"chose in (\d+) steps", line)
    assert steps_taken is not None
    assert 4 <= int(steps_taken[1]) <= 20
    steps.run(20)
    assert sum("summary(model)" in text for text in caplog.messages) == 1
    steps.run(20, X[:1])
    assert sum("summary(model)" in text for text in caplog.messages) == 2


class Notebook(io.StringIO):
    """The standard error stream of a notebook."""


Notebook.__module__ = "ipykernel.iostream"


@pytest.mark.parametrize(
    ("watcher", "log", "lines"),
    [("terminal", "", 1), ("notebook", "", 1), ("terminal", "off", 0), ("notebook", "off", 0), ("", "", 0)],
)
def test_a_terminal_and_a_notebook_show_when_a_model_measures_and_its_first_conclusion(
    watcher: str, log: str, lines: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUCUDNN_LOG", log)
    stream = Notebook() if watcher == "notebook" else io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: watcher == "terminal")
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(Sightings, "earns_measuring", lambda self, key, layer: self.undecided > 2)
    steps = Steps()
    for x in (X, X[:1]):
        steps.run(20, x)
    text = stream.getvalue()
    assert text.count("mucudnn: measuring 2 layers in the first steps, which take longer\n") == lines
    assert text.count("mucudnn: 2.00 times as fast as PyTorch's own convolutions (") == lines
    assert text.count("mucudnn: ") == 2 * lines


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
