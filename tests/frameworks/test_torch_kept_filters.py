"""Converted models in eval mode keep transformed filters: when, for how long, and in how much memory."""

from __future__ import annotations

import copy
import gc
from typing import Any

import pytest
from needs_torch import mt, torch

from mucudnn.arrays import dispatch
from mucudnn.arrays.choosing import Choice
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration, MicroConfiguration
from mucudnn.torch.operators import kept_filters, passes

nn = torch.nn
X = torch.linspace(-1, 1, 2 * 16 * 9 * 8).reshape(2, 16, 9, 8)


@pytest.fixture(autouse=True)
def _winograd_is_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let Winograd be the choice for all forward passes, and forget what earlier tests decided."""

    def decide(engine: Any, kernel: Kernel, *_: Any) -> Choice:
        part = MicroConfiguration(kernel.mini_batch, "WINOGRAD_NONFUSED", 1.0, 0)
        return Choice(Configuration((part,)))

    monkeypatch.setattr(dispatch, "choose", decide)
    dispatch._prepared.clear()


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    layers = nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.Conv2d(32, 16, 3, bias=False)
    return mt.convert(nn.Sequential(*layers)).eval()


def kept(model: Any) -> list[int]:
    """Return the bytes that are kept of each convolution's weight."""
    return [kept_filters.size(model[i].weight) for i in (0, 2)]


def unkept(model: Any, x: torch.Tensor) -> torch.Tensor:
    """Return the result without kept filters, by the same algorithms."""
    with torch.enable_grad():
        result: torch.Tensor = model(x).detach()
    return result


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_without_gradients_filters_are_kept_and_the_bits_stay(model: Any, mode: Any) -> None:
    with mode():
        results = [model(X).clone() for _ in range(3)]
    assert all(kept(model))
    for result in results:
        assert torch.equal(result, unkept(model, X))


def test_gradients_and_training_keep_nothing_and_training_frees(model: Any) -> None:
    unkept(model, X)
    assert kept(model) == [0, 0]
    with torch.no_grad():
        model.train()(X)
        assert kept(model) == [0, 0]
        model.eval()(X)
        assert all(kept(model))
    model.train()(X)
    assert kept(model) == [0, 0]


def test_restoring_a_model_and_dropping_it_free_its_filters(model: Any) -> None:
    before = kept_filters.size()
    with torch.no_grad():
        model(X)
        other = copy.deepcopy(model)
        other(X)
        assert kept_filters.size() - before == 2 * sum(kept(model))
        mt.restore(model)
        assert kept(model) == [0, 0]
    del other
    gc.collect()
    assert kept_filters.size() == before


CHANGES = {
    "in place": lambda w: w.mul_(2),
    "a state dict": lambda w: w.copy_(torch.ones_like(w)),
    "data in place": lambda w: w.data.mul_(2),
    "other data": lambda w: setattr(w, "data", w.data * 2),
    "one value of data": lambda w: w.data[0, 0, 0, 1].add_(1),
    "numpy": lambda w: w.numpy().fill(0.5),
    "parameters from a vector": lambda w: nn.utils.vector_to_parameters(torch.ones(w.numel()), [w]),
    "an optimizer": lambda w: optimize(w),
}


def optimize(w: torch.Tensor) -> None:
    w.grad = torch.ones_like(w)
    torch.optim.SGD([w], 0.1, foreach=True).step()


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@torch.no_grad()
def test_a_changed_weight_is_seen_in_the_next_call(model: Any, change: Any) -> None:
    before = model(X)
    change(model[0].weight)
    result = model(X)
    assert not torch.equal(result, before)
    assert torch.equal(result, unkept(model, X))


@torch.no_grad()
def test_each_shape_of_input_keeps_its_own(model: Any) -> None:
    model(X)
    before = kept(model)
    model(X[:1])
    assert all(more > less for more, less in zip(kept(model), before, strict=True))
    for x in (X, X[:1]):
        assert torch.equal(model(x), unkept(model, x))


@torch.no_grad()
def test_the_limit_bounds_all_filters_together(model: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    model(X)
    first, _ = kept(model)
    mt.restore(model)
    monkeypatch.setenv("MUCUDNN_KEPT_FILTERS", str(kept_filters.size() + first))
    mt.convert(model)
    for x in (X, X[:1], X):
        assert torch.equal(model(x), unkept(model, x))
        assert kept_filters.size(model[2].weight) == 0
    monkeypatch.setenv("MUCUDNN_KEPT_FILTERS", "0")
    other = copy.deepcopy(model)
    other(X)
    assert kept(other) == [0, 0]


@torch.no_grad()
def test_a_refused_weight_is_decided_without_kept_filters(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MUCUDNN_KEPT_FILTERS", "0")
    ran = list[bool]()
    find = kept_filters.find
    monkeypatch.setattr(passes.kept_filters, "find", lambda *args: ran.append(True) or find(*args))
    model(X)
    assert len(ran) == 2
    model(X)
    assert len(ran) == 2


def test_changes_of_weights_made_under_inference_mode_are_seen() -> None:
    with torch.inference_mode():
        model = mt.convert(nn.Sequential(nn.Conv2d(16, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3))).eval()
        result = model(X)
        assert all(kept(model))
        model[0].weight.mul_(2)
        assert not torch.equal(model(X), result)


@torch.no_grad()
def test_a_weight_of_another_type_is_transformed_anew(model: Any) -> None:
    model(X)
    model.bfloat16()(X.bfloat16())
    model.float()
    assert torch.equal(model(X), unkept(model, X))


@torch.no_grad()
def test_autocast_and_parametrized_weights_are_not_kept(model: Any) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        model(X)
    assert kept(model) == [0, 0]
    torch.nn.utils.parametrizations.weight_norm(model[0])
    model(X)
    assert kept(model)[1]
    assert kept_filters.size(model[0].parametrizations.weight.original1) == 0


@torch.no_grad()
def test_the_summary_reports_them(model: Any) -> None:
    model(X)
    assert "kept filters" in str(mt.summary(model, X))
