"""A converted model and its comparison of whole steps: in the cache, in copies of the model, in reports."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from needs_torch import mt, torch
from step_clock import EvenClock
from step_runs import Memory

from mucudnn.costs.cache import Cache, default_path
from mucudnn.costs.schema import STEP_TIME
from mucudnn.measuring.source import StockTiming
from mucudnn.torch.choosing import answers
from mucudnn.torch.choosing.answers import Answer
from mucudnn.torch.layers import converted
from mucudnn.torch.operators.stock import TorchTimer

nn = torch.nn
CLEAR, LITTLE = 0.5, 0.1  # shares of a call's time that a choice saves


def one_step(model, x) -> None:  # type: ignore[no-untyped-def]
    model(x).sum().backward()


@pytest.fixture
def slow_stock(cache_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the test a cache of its own, and let PyTorch's convolutions look slow in measurements."""
    monkeypatch.setattr(TorchTimer, "measure", lambda *_, **__: StockTiming(1e9, 0))


@pytest.mark.parametrize(
    ("layer", "shape"),
    [
        (nn.Conv2d(4, 4, 3, padding=1), (2, 4, 9, 9)),
        (nn.Conv1d(4, 4, 3, padding="same", dilation=2), (4, 9)),
        (nn.Conv3d(4, 4, 1, padding_mode="circular"), (2, 4, 3, 3, 3)),
    ],
)
def test_a_converted_model_keeps_the_times_of_its_steps_in_the_cache(layer, shape, slow_stock: None) -> None:  # type: ignore[no-untyped-def]
    model, x = nn.Sequential(layer, nn.ReLU()), torch.randn(shape)
    first = mt.convert(copy.deepcopy(model))
    first[0]._mucudnn.comparison._clock = EvenClock()  # all steps take the same time
    for _ in range(40):
        one_step(first, x)
    with Cache.open(default_path()) as cache:
        rows = [row for table, row in cache.rows() if table is STEP_TIME]
    assert {row["way"] for row in rows} == {"choices", "stock"}
    assert len({row["step"] for row in rows}) == 1
    later = mt.convert(copy.deepcopy(model))
    for _ in range(2):
        one_step(later, x)
    [steps] = later[0]._mucudnn.comparison._similar_steps.values()
    assert [row["time_ms"] for row in rows] == [1e3, 1e3]
    assert steps.result == "stock"
    assert not steps.times
    wider = mt.convert(copy.deepcopy(model), workspace="1MiB")
    for _ in range(2):
        one_step(wider, x)
    [steps] = wider[0]._mucudnn.comparison._similar_steps.values()
    assert steps.result is None, "another limit makes other choices"


def test_nothing_that_only_this_process_has_tells_steps_apart(slow_stock: None) -> None:
    model = mt.convert(nn.Conv2d(4, 4, 3))
    x = torch.randn(2, 4, 9, 9)
    key = answers.key_of(x, model.weight, model.bias, None, model._mucudnn, (1, 1), "same", (1, 1), 1)
    assert key is not None
    assert " object at " not in key.text()


def test_a_cache_that_cannot_be_read_keeps_no_times_and_raises_nothing(
    slow_stock: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = mt.convert(nn.Sequential(nn.Conv2d(4, 4, 3)), budget="1h")  # all is decided in the first step
    model[0]._mucudnn.comparison._clock = EvenClock()  # on a busy machine, real steps may take longer
    x = torch.randn(2, 4, 9, 9)
    one_step(model, x)
    default_path().write_text("no cache")
    for _ in range(80):
        one_step(model, x)
    [steps] = model[0]._mucudnn.comparison._similar_steps.values()
    assert steps.result is not None


def test_the_reports_say_which_layers_run_pytorchs_own(
    cache_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x = mt.convert(nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3))), torch.randn(2, 4, 9, 9)
    monkeypatch.setattr(
        converted,
        "decide",
        lambda _, operands, *more: Answer(CLEAR if operands.x.shape[2] == 9 else LITTLE),
    )
    memory = Memory()
    memory.step_times = lambda *_: {"choices": 3.0, "stock": 2.0, "mixture": 1.0}  # type: ignore[method-assign]
    model[0]._mucudnn.comparison._find_trial = memory.find_trial
    assert [choice.micro_batches is None for choice in mt.summary(model, x).choices] == [False] * 5
    model(x)
    assert {(choice.layer, choice.micro_batches is None) for choice in mt.summary(model, x).choices} == {
        ("0", False),
        ("1", True),
    }


def test_models_with_never_compare_no_steps() -> None:
    assert mt.convert(nn.Sequential(nn.Conv2d(1, 1, 1)), tune="never")[0]._mucudnn.comparison is None
