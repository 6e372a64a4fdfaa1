"""Transforms of functions and forward mode: a converted model gives what it gave, and nothing is lost."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
from needs_torch import mt, torch

import mucudnn
from mucudnn.arrays import dispatch
from mucudnn.errors import NotDifferentiableError

X, W = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
# PyTorch's own transforms compile a helper with what PyTorch has deprecated.
pytestmark = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")


def gradient(model: torch.nn.Module) -> torch.Tensor:
    weights = {name: parameter.detach() for name, parameter in model.named_parameters()}

    def loss(weights: dict[str, torch.Tensor]) -> torch.Tensor:
        return torch.func.functional_call(model, weights, X).square().sum()

    return torch.func.grad(loss)(weights)["weight"]


def tangent(model: torch.nn.Module) -> torch.Tensor:
    return torch.func.jvp(model, (X,), (X,))[1]


def tangent_of_a_dual(model: torch.nn.Module) -> torch.Tensor:
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level():
        return forward_ad.unpack_dual(model(forward_ad.make_dual(X, X))).tangent


@pytest.mark.parametrize("function", [gradient, tangent, tangent_of_a_dual])
@pytest.mark.parametrize("compiled", [False, True])
def test_a_transform_of_a_converted_model_gives_what_it_gave(
    function: Callable[[torch.nn.Module], torch.Tensor], compiled: bool
) -> None:
    torch.compiler.reset()
    model = torch.nn.Conv2d(3, 4, 3)
    converted = mt.convert(copy.deepcopy(model))
    run = torch.compile(function, backend="aot_eager") if compiled else function
    torch.testing.assert_close(run(converted), function(model))


def test_what_is_compiled_without_a_transform_is_divided(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatch, "_prepared", {})
    torch.compile(mt.convert(torch.nn.Conv2d(3, 4, 3)), backend="aot_eager")(X)
    assert dispatch._prepared


def test_a_tangent_is_refused_by_what_would_lose_it() -> None:
    forward_ad = torch.autograd.forward_ad
    for function in (mt.conv2d, mucudnn.convolution_forward):
        with forward_ad.dual_level():
            for x, w in ((forward_ad.make_dual(X, X), W), (X, forward_ad.make_dual(W, W))):
                with pytest.raises(NotDifferentiableError):
                    function(x, w)


def test_beside_a_tangent_what_has_none_is_computed() -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return x * mt.conv2d(X, W).sum()

    _, found = torch.func.jvp(function, (X,), (X,))
    torch.testing.assert_close(found, function(X))
