"""`will_it_fit` predicts what training steps take: tensors, PyTorch's segments, and the least they run with.

On the stand-in a convolution takes the workspace of the host engine, which is not that of a GPU. So most
convolutions of these tests take none, and the others are predicted with the workspace that each takes alone.
"""

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from fit_networks import EVERY, MODELS, OPTIMIZERS, WAYS, training_steps, without_workspaces
from needs_torch import mt, torch
from torch import Tensor
from unused_memory import limited_to, unused_stream

from mucudnn.measuring.modelled_device import ModelledDevice
from mucudnn.plans.memory.costs import model_costs
from mucudnn.plans.memory.planning import ALIGNMENT
from mucudnn.plans.memory.training_step import Costs
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.network import Network
from mucudnn.sizes import round_up
from mucudnn.solver import Configuration
from mucudnn.torch.training import fit

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("only_on_stand_in")]

_CASES = [way for way in WAYS if way[1] in ("sgd", "adamw")]


@pytest.mark.parametrize(
    ("name", "optimizer", "is_cast", "accumulates"),
    _CASES[:: 1 if EVERY else 7],  # each model and each way
)
def test_the_memory_is_that_of_the_allocator(
    name: str,
    optimizer: str,
    is_cast: bool,
    accumulates: bool,
    no_workspaces: None,
) -> None:
    make, shape = MODELS[name]

    def train() -> None:
        run_steps(name, optimizer, is_cast=is_cast, accumulates=accumulates)

    fit = mt.will_it_fit(
        make(), torch.empty(shape, device="meta"), memory=2**40, optimizer=optimizer, accumulate=accumulates,
        autocast=torch.bfloat16 if is_cast else None,
    )  # fmt: skip
    context, fragmentation = fit.parts["context"], fit.parts["fragmentation"]
    gc.collect()
    with unused_stream():
        allocated, reserved = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
        torch.cuda.reset_peak_memory_stats()
        train()
        allocated = torch.cuda.max_memory_allocated() - allocated
        reserved = torch.cuda.max_memory_reserved() - reserved
    assert fit.peak - context - fragmentation == pytest.approx(allocated, rel=0.03)
    assert fit.reserved - context == pytest.approx(reserved, rel=0.03)
    with unused_stream(), limited_to(int(1.03 * (fit.peak - context))):
        train()
    with unused_stream(), limited_to(int(0.97 * (fit.peak - context))), pytest.raises(torch.OutOfMemoryError):
        train()


@pytest.mark.parametrize("name", ["residual", "plain", "signal", "unet3d"])
def test_the_memory_is_that_of_the_allocator_with_its_workspaces(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, shape = MODELS[name]
    monkeypatch.setattr(fit, "model_costs", with_workspaces_of_pytorch)
    predicted = mt.will_it_fit(make(), torch.empty(shape, device="meta"), memory=2**40, optimizer="sgd")
    gc.collect()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    run_steps(name, "sgd")
    peak = torch.cuda.max_memory_allocated() - before
    tensors_and_workspaces = predicted.peak - predicted.parts["context"] - predicted.parts["fragmentation"]
    assert tensors_and_workspaces == pytest.approx(peak, rel=0.03)


def run_steps(name: str, optimizer: str, *, is_cast: bool = False, accumulates: bool = False) -> None:
    """Train a model on the device."""
    make, shape = MODELS[name]
    model, x = make().cuda(), torch.randn(shape, device="cuda")
    updates = OPTIMIZERS[optimizer](model.parameters())
    for _ in training_steps(model, x, updates, is_cast=is_cast, accumulates=accumulates):
        pass


def with_workspaces_of_pytorch(network: Network, device: ModelledDevice, *, divide: bool) -> Costs:
    """Return modelled costs in which undivided kernels take the workspaces that PyTorch takes for them."""
    costs = model_costs(network, device, divide=divide)
    taken = {
        kernel: Configuration((replace(choice.parts[0], workspace=workspace_of(kernel)),))
        for kernel, choice in costs.undivided.items()
    }
    return replace(costs, undivided=taken)


def workspace_of(kernel: Kernel) -> int:
    """Run a kernel, and return the bytes that PyTorch took meanwhile beside its result."""
    p = kernel.problem
    x = torch.zeros(p.mini_batch, p.in_channels, *p.input, device="cuda")
    w = torch.zeros(p.out_channels, p.in_channels // p.groups, *p.kernel, device="cuda")
    dy = torch.zeros(p.mini_batch, p.out_channels, *p.output, device="cuda")
    sizes = (p.stride, p.padding, p.dilation, False, [0] * len(p.input), p.groups)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    if kernel.pass_ == "forward":
        result = torch.ops.aten.convolution(x, w, None, *sizes)
    elif kernel.pass_ == "backward_data":
        result = torch.ops.aten.convolution_backward(dy, x, w, None, *sizes, [True, False, False])[0]
    else:
        result = torch.ops.aten.convolution_backward(dy, x, w, None, *sizes, [False, True, False])[1]
    return max(0, torch.cuda.max_memory_allocated() - before - round_up(result.nbytes, ALIGNMENT))


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
