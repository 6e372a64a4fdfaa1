"""Strict numerics in PyTorch: functions, converted models and plans sum each result over its own window."""

import pickle

import pytest
import torch
from plans import plan_by
from torch import Tensor, nn

import mucudnn.torch as mt
from mucudnn._native import Problem
from mucudnn.errors import UsageError
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.shapes import problem_of
from mucudnn.torch.operators import stock


def not_finite(result: Tensor) -> Tensor:
    return ~result.isfinite()


@pytest.fixture
def x() -> Tensor:
    """Return images with a NaN, an infinity and zeros; Winograd and FFT would spread the first two."""
    torch.manual_seed(1)
    x = torch.rand(4, 16, 24, 24)
    x[0, 3, 5, 7], x[2, 0, 0, 0], x[3, :, 12:] = torch.nan, torch.inf, 0
    return x


@pytest.fixture
def model() -> nn.Module:
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 5, padding=2), nn.Conv2d(16, 8, 3)
    )


def test_a_function_takes_the_word_and_refuses_another(x: Tensor) -> None:
    w = torch.rand(16, 16, 3, 3)
    strict = mt.conv2d(x, w, padding=1, workspace="none", numerics="strict")
    problem = problem_of("f32", "nchw", tuple(x.shape), tuple(w.shape), 1, 1, 1, 1)
    spreading = plan_by({"forward": "WINOGRAD_NONFUSED"}, problem, 4)
    fast = mt.conv2d(x, w, padding=1, plan=spreading, numerics="fast")
    stock = torch.conv2d(x, w, padding=1)
    assert torch.equal(not_finite(strict), not_finite(stock))
    assert not_finite(fast).sum() > not_finite(stock).sum()  # or the test shows nothing
    assert (strict[3, :, 14:] == 0).all()
    with pytest.raises(UsageError, match="numerics is 'exact': there are 'fast' and 'strict'"):
        mt.conv2d(x, w, numerics="exact")


def test_a_converted_model_is_strict_forwards_and_backwards(x: Tensor, model: nn.Module) -> None:
    results, gradients = [], []
    for run in (model, mt.convert(pickle.loads(pickle.dumps(model)), workspace="none", numerics="strict")):
        own = x.nan_to_num(posinf=1).requires_grad_()
        results.append(not_finite(run(x)))
        run(own).sum().backward()
        gradients.append(own.grad)
    assert torch.equal(*results)
    torch.testing.assert_close(*gradients)


def test_a_strict_model_says_so_keeps_it_and_compares_no_whole_steps(model: nn.Module) -> None:
    mt.convert(model, numerics="strict")
    again = pickle.loads(pickle.dumps(model))
    assert "numerics=strict" in str(again)
    assert all(m._mucudnn.comparison is None for m in again if isinstance(m, nn.Conv2d))
    assert "numerics" not in str(mt.convert(mt.restore(model)))
    with pytest.raises(UsageError, match="numerics is 'exact'"):
        mt.convert(model, numerics="exact")


def test_a_strict_plan_makes_a_model_strict(x: Tensor, model: nn.Module) -> None:
    plan = mt.plan(model, torch.rand_like(x), workspace="none", numerics="strict")
    assert plan.promise.is_strict
    assert not any("WINOGRAD" in line or "FFT" in line for line in str(plan).splitlines())
    expected = not_finite(model(x))
    mt.convert(model, plan=plan)
    assert "numerics=strict" in str(model)
    assert torch.equal(not_finite(model(x)), expected)
    assert not mt.plan(mt.restore(model), torch.rand_like(x), workspace="none").promise.is_strict


def test_a_compiled_function_is_strict(x: Tensor) -> None:
    w = torch.rand(16, 16, 3, 3)

    @torch.compile(fullgraph=True)
    def function(x: Tensor) -> Tensor:
        return mt.conv2d(x.relu(), w, padding=1, workspace="none", numerics="strict")

    assert torch.equal(not_finite(function(x)), not_finite(torch.conv2d(x.relu(), w, padding=1)))


def test_stock_competes_only_where_its_sums_are_those_of_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = Problem(mini_batch=2, in_channels=4, out_channels=4, input=(8, 8), kernel=(3, 3), math="strict")
    source = stock.source_of("cpu")
    kernels = {
        name: Kernel(problem.replace(data_type=name), "forward") for name in ("f32", "f64", "f16", "bf16")
    }
    assert [name for name, kernel in kernels.items() if source.admits(kernel)] == ["f32", "f64"]
    assert source.admits(Kernel(problem.replace(data_type="bf16", math="default"), "forward"))
    monkeypatch.setattr(stock, "is_mkldnn_enabled", lambda: False)
    assert not source.admits(Kernel(problem, "forward"))
