"""`convert(tune=...)` says when a converted model measures."""

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import pytest
from cached_rows import times_in
from needs_torch import mt, torch

from mucudnn.arrays import choosing, dispatch
from mucudnn.arrays.recent import Recent
from mucudnn.costs.cache import Cache, default_path
from mucudnn.errors import UsageError
from mucudnn.torch.choosing import answers

nn = torch.nn


@pytest.fixture(autouse=True)
def _fresh(cache_path: Path) -> None:
    """Give each test a cache."""


def model() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3))


X = torch.randn(2, 3, 8, 8, generator=torch.Generator().manual_seed(1))


def gradients(network: nn.Module) -> list[torch.Tensor]:
    return [*torch.autograd.grad(network(X).square().sum(), list(network.parameters()))]


def count_rows() -> int:
    with Cache.open(default_path()) as cache:
        return sum(1 for _ in cache.rows())


def test_a_wrong_value_is_an_error_that_names_the_right_ones() -> None:
    with pytest.raises(UsageError, match="'later': there are eager, never"):
        mt.convert(model(), tune="later")


def test_never_measures_nothing_and_runs_pytorchs_own() -> None:
    wanted = gradients(model())
    actual = gradients(mt.convert(model(), tune="never"))
    assert all(torch.equal(a, b) for a, b in zip(actual, wanted, strict=True))
    assert count_rows() == 0
    assert not dispatch._prepared


def test_never_takes_the_decisions_that_the_cache_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    gradients(mt.convert(model()))
    chosen = {p.configuration for p in dispatch._prepared.values()}
    rows = count_rows()
    monkeypatch.setattr(dispatch, "_prepared", Recent(4096))
    monkeypatch.setattr(answers, "_answers", Recent(16))
    torch.testing.assert_close(gradients(mt.convert(model(), tune="never")), gradients(model()))
    assert {p.configuration for p in dispatch._prepared.values()} == chosen
    assert count_rows() == rows


def test_an_interrupt_loses_no_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    original, made = choosing.benchmark, []

    def interrupted(*arguments: Any, **more: Any) -> Any:
        costs = original(*arguments, **more)
        made.append(arguments[0].made.total())
        if len(made) == 2:
            raise KeyboardInterrupt
        return costs

    monkeypatch.setattr(choosing, "benchmark", interrupted)
    network = mt.convert(model())
    with pytest.raises(KeyboardInterrupt):
        gradients(network)
    assert count_rows() >= sum(made)
    gradients(network)
    assert made[2] == 0  # the kernel after which the interrupt came


def test_copies_pickles_and_texts_keep_it() -> None:
    network = mt.convert(model(), tune="never", budget="1min")
    assert "tune=never" in repr(network)
    assert "budget=60s" in repr(network)
    for other in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        assert other[0]._mucudnn.tune == "never"
        assert "budget=60s" in repr(other)
    assert not re.search("tune|budget", repr(mt.convert(network)))


def test_a_budget_that_is_spent_leaves_pytorchs_own_and_an_undivided_algorithm_to_choose_from() -> None:
    torch.testing.assert_close(gradients(mt.convert(model(), budget="0s")), gradients(model()))
    with Cache.open(default_path()) as cache:
        assert {row["micro_batch"] for row in times_in(cache)} == {2}
    rows = count_rows()
    dispatch._prepared.clear()
    answers._answers.clear()
    gradients(mt.convert(model()))
    assert count_rows() > rows


def test_an_unreadable_budget_is_an_error_before_any_call() -> None:
    with pytest.raises(UsageError, match="'soon' is not a budget"):
        mt.convert(model(), budget="soon")
