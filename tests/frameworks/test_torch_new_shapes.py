"""Only a shape that comes again is measured; PyTorch runs the others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from needs_torch import mt, torch

from mucudnn._native import parse_descriptor
from mucudnn.arrays import dispatch
from mucudnn.arrays.recent import Recent
from mucudnn.costs.cache import Cache, default_path
from mucudnn.costs.schema import MEASUREMENT
from mucudnn.errors import UsageError
from mucudnn.torch.choosing import answers, decision, sightings
from mucudnn.torch.choosing.sightings import Sightings
from mucudnn.torch.compiling import unknown_sizes

nn = torch.nn
F = torch.nn.functional


@pytest.fixture(autouse=True)
def _fresh(cache_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a cache, and the memory of a new process."""
    forget(monkeypatch)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_prepared", Recent(4096))
    monkeypatch.setattr(answers, "_answers", Recent(2048))
    monkeypatch.setattr(sightings, "of_functions", Sightings())
    monkeypatch.setattr(unknown_sizes, "_sightings", Sightings())
    monkeypatch.setattr(unknown_sizes, "_choices", Recent(2048))


def model() -> nn.Module:
    """Return a network whose two last layers are identical."""
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), *(nn.Conv2d(4, 4, 3, padding=1) for _ in range(2)))


def image(columns: int, samples: int = 2) -> torch.Tensor:
    return torch.randn(samples, 3, 8, columns, generator=torch.Generator().manual_seed(columns))


def count_measurements() -> int:
    with Cache.open(default_path()) as cache:
        return sum(1 for _ in cache.rows())


def step(network: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor) -> torch.Tensor:
    y = network(x)
    y.square().sum().backward()
    return y


def function_of(network: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the network made of functions instead of modules."""

    def run(x: torch.Tensor) -> torch.Tensor:
        for layer in network:
            x = mt.conv2d(x, layer.weight, layer.bias, layer.stride, layer.padding)
        return x

    return run


def compiled(network: nn.Module) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return the network with convolutions whose sizes the compiler does not know."""
    torch.compiler.reset()
    return torch.compile(mt.convert(network), dynamic=True)


KINDS = {"modules": mt.convert, "functions": function_of}


@pytest.mark.parametrize("kind", KINDS)
def test_steps_of_ever_new_sizes_measure_nothing_and_are_pytorchs_own(kind: str) -> None:
    network, own = KINDS[kind](model()), model()
    for columns in range(4, 28):
        assert torch.equal(step(network, image(columns)), own(image(columns)))
    assert count_measurements() == 0
    assert not dispatch._prepared


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("again", [image(8), image(8, samples=3)], ids=["same", "another mini-batch"])
def test_a_size_is_measured_when_it_comes_again(kind: str, again: torch.Tensor) -> None:
    network, own = KINDS[kind](model()), model()
    step(network, image(8))
    assert count_measurements() == 0
    torch.testing.assert_close(step(network, again), own(again), rtol=1e-4, atol=1e-4)
    assert (count_measurements() > 0) == (again.shape == image(8).shape)


def measured_columns() -> set[int]:
    with Cache.open(default_path()) as cache:
        problems = [parse_descriptor(row["problem"])[0] for row in cache.select(MEASUREMENT)]
    return {problem.input[-1] for problem in problems}


@pytest.mark.parametrize("kind", KINDS)
def test_the_sizes_of_a_few_are_measured_and_new_ones_among_them_are_not(kind: str) -> None:
    network = KINDS[kind](model())
    for columns in (8, 9, 8, 9, 8, 9, 10):
        step(network, image(columns))
    assert measured_columns() == {8, 9}


def test_a_compiled_model_measures_sizes_that_come_again_and_no_others() -> None:
    network, own = compiled(model()), model()
    for columns in range(8, 14):
        torch.testing.assert_close(step(network, image(columns)), step(own, image(columns)))
    assert count_measurements() == 0
    for columns in (8, 9) * 6:
        torch.testing.assert_close(
            step(network, image(columns)), step(own, image(columns)), rtol=1e-4, atol=1e-4
        )
    with Cache.open(default_path()) as cache:
        problems = [parse_descriptor(row["problem"])[0] for _, row in cache.rows()]
    assert {problem.input[-1] for problem in problems} == {8, 9}


@pytest.mark.parametrize("kind", KINDS)
def test_sizes_that_meet_again_in_the_last_layers_are_not_measured(kind: str) -> None:
    strided = nn.Sequential(
        nn.Conv2d(3, 4, 3, 4, padding=1), nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
    )
    network = KINDS[kind](strided)
    for columns in range(8, 32):
        step(network, image(columns))
    assert count_measurements() == 0


def test_a_layer_that_runs_twice_in_a_step_is_measured_for_one_of_the_ever_new_sizes() -> None:
    twin = mt.convert(nn.Conv2d(3, 4, 3))
    counts = []
    for columns in range(4, 12):
        twin(image(columns))
        twin(image(columns))
        counts.append(count_measurements())
    assert counts[0] > 0
    assert set(counts) == {counts[0]}


@pytest.mark.parametrize("way", ["model", "function", "variable"])
def test_a_named_limit_holds_from_the_first_call_without_a_measurement(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    network = mt.convert(model(), workspace=None if way == "variable" else "64KiB")
    if way == "variable":
        monkeypatch.setenv("MUCUDNN_WORKSPACE_LIMIT", "64KiB")
    for columns in range(8, 14):
        if way == "function":
            mt.conv2d(image(columns), torch.ones(4, 3, 3, 3), workspace="64KiB")
        else:
            step(network, image(columns))
    assert count_measurements() == 0
    ran = dispatch._prepared.everything().values()
    assert {ready.problem.input[-1] for ready in ran} == {*range(8, 14)}
    assert all(ready.own == ready.problem.mini_batch and ready.workspace <= 2**16 for ready in ran)


def test_a_later_process_follows_the_cache_from_the_first_call(monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(2):
        step(mt.convert(network := model()), image(8))
    rows = count_measurements()
    decided = answers._answers.everything()
    forget(monkeypatch)
    step(mt.convert(network), image(8))
    assert count_measurements() == rows
    assert answers._answers.everything().keys() == decided.keys()


def test_the_cache_is_not_asked_about_ever_new_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    network, own, asked = mt.convert(model()), decision.is_measured, list[object]()

    def ask(*arguments: object) -> bool:
        asked.append(arguments)
        return own(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(decision, "is_measured", ask)
    for columns in range(4, 28):
        step(network, image(columns))
    assert len(asked) == 2 * 3  # for the first two sizes of each layer, and one pass of each


def test_a_call_that_makes_no_convolution_raises_the_same_error_in_each_call() -> None:
    for columns in range(4, 10):
        with pytest.raises(UsageError):
            mt.conv2d(image(columns), torch.ones(4, 2, 3, 3))


def test_what_is_remembered_about_the_calls_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sightings, "_MOST_CALLS", 4)
    monkeypatch.setattr(sightings, "_MOST_LAYERS", 2)
    network = mt.convert(model())
    for columns in range(4, 28):
        step(network, image(columns))
    seen = network[0]._mucudnn.sightings
    assert len(seen._counts.everything()) <= 8
    assert len(seen._layers.everything()) <= 4


@given(st.lists(st.tuples(st.sampled_from("xyz"), st.sampled_from("abcd")), max_size=60))
def test_a_shape_is_measured_if_it_comes_again_more_often_than_any_layer_has_shapes(
    calls: list[tuple[str, str]],
) -> None:
    seen = Sightings()
    for place, (layer, call) in enumerate(calls):
        before = calls[:place]
        shapes = [{shape for own, shape in calls[: place + 1] if own == each} for each in "xyz"]
        earned = seen.earns_measuring(call, layer)  # type: ignore[arg-type]
        assert earned == (before.count((layer, call)) >= max(map(len, shapes)))


def test_a_shape_that_comes_often_is_measured_among_any_number_of_shapes() -> None:
    seen = Sightings()
    for shape in range(500):
        assert not seen.earns_measuring(shape, "layer")  # type: ignore[arg-type]
    assert [seen.earns_measuring(7, "layer") for _ in range(40)].index(True) == 31  # type: ignore[arg-type]
