"""`will_it_fit` predicts the most bytes that PyTorch's CUDA allocator holds during training steps.

These tests compare tensors alone. On the stand-in a convolution takes the workspace of the host engine,
which is not that of a GPU, so the convolutions of these tests take none.
"""

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fit_networks import EVERY, MODELS, OPTIMIZERS, WAYS, training_steps, without_workspaces
from needs_torch import mt, torch
from torch import Tensor

from mucudnn.torch.training import fit

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("only_on_stand_in")]

_CASES = [way for way in WAYS if way[1] in ("sgd", "adamw")]


@pytest.mark.parametrize(
    ("name", "optimizer", "is_cast", "accumulates"),
    _CASES[:: 1 if EVERY else 7],  # each model and each way
)
def test_the_peak_is_that_of_the_allocator(
    name: str,
    optimizer: str,
    is_cast: bool,
    accumulates: bool,
    no_workspaces: None,
) -> None:
    make, shape = MODELS[name]
    gc.collect()
    before = torch.cuda.memory_allocated()
    model, x = make().cuda(), torch.randn(shape, device="cuda")
    predicted = mt.will_it_fit(
        model, x, memory=2**40, optimizer=optimizer, accumulate=accumulates,
        autocast=torch.bfloat16 if is_cast else None,
    )  # fmt: skip
    updates = OPTIMIZERS[optimizer](model.parameters())
    torch.cuda.reset_peak_memory_stats()
    for _ in training_steps(model, x, updates, is_cast=is_cast, accumulates=accumulates):
        pass
    peak = torch.cuda.max_memory_allocated() - before
    assert predicted.peak - predicted.parts["context"] == pytest.approx(peak, rel=0.03)


@pytest.fixture
def no_workspaces(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Make PyTorch's convolutions take no workspaces, and `will_it_fit` count none."""
    monkeypatch.setattr(fit, "model_costs", without_workspaces)
    with torch.library._scoped_library("aten", "IMPL") as library:
        for name, function in _OPERATORS.items():
            library.impl(name, function, "CUDA", allow_override=True)
        yield


def _convolve(
    x: Tensor, weight: Tensor, padding: Any, stride: Any, dilation: Any, groups: int, *_: Any
) -> Tensor:
    zeros = [0] * len(stride)
    return _on_host(
        torch.ops.aten.convolution, x, weight, None, stride, padding, dilation, False, zeros, groups
    )


def _convolve_transposed(
    x: Tensor,
    weight: Tensor,
    padding: Any,
    output_padding: Any,
    stride: Any,
    dilation: Any,
    groups: int,
    *_: Any,
) -> Tensor:
    return _on_host(
        torch.ops.aten.convolution, x, weight, None, stride, padding, dilation, True, output_padding, groups
    )


def _differentiate(dy: Tensor, *arguments: Any) -> Any:
    return _on_host(torch.ops.aten.convolution_backward, dy.contiguous(), *arguments)


_OPERATORS: dict[str, Callable[..., Any]] = {
    "cudnn_convolution": _convolve,
    "cudnn_convolution_transpose": _convolve_transposed,
    "convolution_backward": _differentiate,
}


def _on_host(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the operator's results, computed in fp32 beside the device's memory."""
    (data_type, *_) = (each.dtype for each in arguments if isinstance(each, Tensor))
    wide = [each.cpu().float() if isinstance(each, Tensor) else each for each in arguments]
    results = function(*wide)
    if isinstance(results, Tensor):
        return results.to(data_type).cuda()
    return tuple(None if each is None else each.to(data_type).cuda() for each in results)
