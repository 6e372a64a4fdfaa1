"""`benchmark` times whole steps in balanced order, and says no more than the times allow."""

from __future__ import annotations

import copy
import json
import random
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from needs_torch import mt, torch

from mucudnn._native import RunTime
from mucudnn.errors import ArgumentTypeError, UsageError
from mucudnn.measuring.intervals import median_of
from mucudnn.torch import benchmarking
from mucudnn.torch.benchmarking import order_of_round
from mucudnn.torch.choosing.faster_way import name_speedup

nn = torch.nn


@pytest.fixture(autouse=True)
def _quick_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the compiler generate no code."""
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda model: compile_(model, backend="aot_eager"))


@pytest.mark.parametrize("count", range(1, 8))
def test_each_way_follows_each_other_one_and_takes_each_place_equally_often(count: int) -> None:
    rounds = [order_of_round(count, index) for index in range(2 * count)]
    assert all(sorted(order) == [*range(count)] for order in rounds)
    places = Counter((way, place) for order in rounds for place, way in enumerate(order))
    neighbours = Counter(pair for order in rounds for pair in pairwise(order))
    assert set(places.values()) == {2}
    assert len(neighbours) == count * (count - 1)
    assert set(neighbours.values()) <= {2}


speedups = st.lists(st.floats(0.5, 2.0), min_size=6, max_size=60)


def result_of(values: list[float]) -> str:
    return name_speedup(median_of(values))


@given(speedups, st.randoms())
def test_the_result_depends_on_no_order(values: list[float], shuffled: random.Random) -> None:
    mixed = [*values]
    shuffled.shuffle(mixed)
    assert result_of(values) == result_of(mixed)


@given(speedups)
def test_a_faster_way_is_faster_in_more_steps_than_by_chance(values: list[float]) -> None:
    result, count = result_of(values), len(values)
    faster, slower = (sum(sign * value > sign for value in values) for sign in (1, -1))
    if result == "faster":
        assert faster - slower > count**0.5
    if result == "slower":
        assert slower - faster > count**0.5
    if result == "same":
        assert sum(0.98 < value < 1.02 for value in values) > count / 2


@given(speedups, st.floats(1.0, 1.5))
def test_better_times_never_make_a_way_slower(values: list[float], factor: float) -> None:
    order = ("slower", "undecided", "faster")
    before, after = result_of(values), result_of([value * factor for value in values])
    if "same" not in (before, after):
        assert order.index(after) >= order.index(before)


@pytest.mark.parametrize(
    ("values", "result"),
    [
        ([1.2] * 5, "undecided"),
        ([1.2] * 6, "faster"),
        ([0.8] * 6, "slower"),
        ([1.0] * 6, "same"),
        ([1.01] * 40, "same"),
        ([1.2] * 6 + [0.99], "undecided"),
        ([1.2] * 8 + [0.99], "faster"),
        ([0.9, 1.1] * 20, "undecided"),
    ],
)
def test_the_result_of_some_speedups(values: list[float], result: str) -> None:
    assert result_of(values) == result


@pytest.mark.parametrize("count", [8, 20, 40])
def test_the_interval_holds_the_true_median_in_95_percent_of_samples(count: int) -> None:
    generator = random.Random(count)
    samples = ([generator.lognormvariate(0.0, 0.1) for _ in range(count)] for _ in range(2000))
    medians = [median_of(sample) for sample in samples]
    held = sum(median is not None and median.low <= 1.0 <= median.high for median in medians)
    assert held / 2000 > 0.94


def test_equal_ways_are_rarely_called_different() -> None:
    generator = random.Random(1)
    results = Counter(
        result_of([generator.lognormvariate(0.0, 0.05) for _ in range(20)]) for _ in range(2000)
    )
    assert results["faster"] + results["slower"] < 2000 * 0.06


def timed_as(times: dict[str, Callable[[int], float]], cpu: float = 1.0) -> Callable[..., RunTime]:
    """Return a clock by which the step of each way takes the ms that `times` say for its round."""
    rounds = Counter[str]()

    def timed(device: str, run: Any) -> RunTime:
        run()
        name = run.__self__.name
        rounds[name] += 1
        wall_ms = times[name](rounds[name])
        return RunTime(wall_ms, cpu * wall_ms, 1)

    return timed


def network(dims: int = 2) -> tuple[nn.Module, torch.Tensor]:
    """Return a small network with a norm, and its input."""
    torch.manual_seed(1)
    convolution, norm = (
        (nn.Conv1d, nn.BatchNorm1d),
        (nn.Conv2d, nn.BatchNorm2d),
        (nn.Conv3d, nn.BatchNorm3d),
    )[dims - 1]
    layers = convolution(2, 4, 3), norm(4), nn.ReLU(), convolution(4, 2, 3)
    return nn.Sequential(*layers), torch.randn(3, 2, *[8] * dims)


def test_the_result_follows_from_the_times_of_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    drift = [1.0 + place / 40 for place in range(60)]  # the processor gets warm
    times = {
        "stock": lambda place: 20.0 * drift[place],
        "channels_last": lambda place: 40.0 * drift[place],
        "compiled": lambda place: 20.1 * drift[place],
        "converted": lambda place: 10.0 * drift[place],
        "both": lambda place: (19.0 if place % 2 else 21.0) * drift[place],
    }
    monkeypatch.setattr(benchmarking, "timed", timed_as(times))
    model, x = network()
    result = mt.benchmark(model, x)
    assert [way.name for way in result.ways] == list(benchmarking.WAYS)
    assert [way.result for way in result.ways] == ["", "slower", "same", "faster", "undecided"]
    stock, *_, converted, _ = result.ways
    assert converted.speedup.value == pytest.approx(2.0)
    assert converted.ms.low <= converted.ms.value <= converted.ms.high
    assert converted.ms.value == pytest.approx(stock.ms.value / 2)
    assert not result.is_busy
    assert "Other programs" not in str(result)
    row = next(line for line in str(result).splitlines() if line.startswith("converted"))
    assert "2.00× (2.00× to 2.00×)" in row
    assert row.endswith("faster")
    assert f"One training step on cpu with {torch.get_num_threads()} threads: medians of 40 rounds" in str(
        result
    )


def test_disturbed_steps_leave_the_result_open(monkeypatch: pytest.MonkeyPatch) -> None:
    times = {"stock": lambda place: 20.0, "converted": lambda place: 10.0}
    monkeypatch.setattr(benchmarking, "timed", timed_as(times, cpu=0.5))
    result = mt.benchmark(*network(), ways=["converted"])
    assert result.is_busy
    assert "Other programs kept the processors busy" in str(result)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("training", [True, False])
def test_all_ways_compute_the_same_and_the_model_stays_as_it_is(dims: int, training: bool) -> None:
    model, x = network(dims)
    before, modes = copy.deepcopy(model.state_dict()), [module.training for module in model.modules()]
    result = mt.benchmark(model, x, training=training, workspace="1MiB", seconds=0)
    assert result.rounds >= 8
    assert 0 <= result.difference < 1e-4
    assert all(way.memory > 0 and not way.reason for way in result.ways)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert {type(module) for module in model} >= {type(network(dims)[0][0])}
    assert all(parameter.grad is None for parameter in model.parameters())
    assert json.loads(json.dumps(result.to_dict()))["ways"][0]["name"] == "stock"
    assert result._repr_html_().count("<tr>") == 6


def test_a_converted_model_and_a_loss_of_several_outputs_can_be_compared() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Conv2d(2, 4, 3)

        def forward(self, x: torch.Tensor, scale: float) -> dict[str, torch.Tensor]:
            return {"y": self.layer(x) * scale, "mean": x.mean()}

    model, x = mt.convert(Two()), torch.randn(2, 2, 8, 8)
    result = mt.benchmark(model, (x, 2.0), ways=["converted"], seconds=0)
    assert [way.name for way in result.ways] == ["stock", "converted"]
    assert isinstance(model.layer._mucudnn, object)
    result = mt.benchmark(model, (x, 2.0), ways=[], seconds=0, loss=lambda output: output["y"].sum())
    assert result.difference == 0


def test_what_cannot_be_compared_is_refused() -> None:
    model, x = network()
    with pytest.raises(UsageError, match=r"there is no way 'convert': did you mean converted\?"):
        mt.benchmark(model, x, ways=["convert"])
    with pytest.raises(ArgumentTypeError, match="the model is 'resnet18'"):
        mt.benchmark("resnet18", x)
    with pytest.raises(UsageError, match="there is nothing to divide"):
        mt.benchmark(nn.Linear(2, 2), x)
    with pytest.raises(RuntimeError):
        mt.benchmark(model, x[:, :1])
