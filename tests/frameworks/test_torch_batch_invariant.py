"""With `batch_invariant` a sample has the same bits in each batch, at each place, beside any others."""

import sys
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import programs
import pytest
import torch
from dimensions import OURS, layer_class
from torch import Tensor, nn

import mucudnn.torch as mt
from bench.suites.networks.zoo import build
from mucudnn.arrays.dispatch import prepared
from mucudnn.errors import MucudnnWarning, UsageError
from mucudnn.promises import Promise
from mucudnn.torch.operators.operands import prepare_operands

MOST = 17
# Axes, channels in and out, width, kernel, stride, dilation, groups.
SHAPES = {
    "winograd": (2, 16, 16, 14, 3, 1, 1, 1),
    "fft": (2, 8, 8, 13, 5, 1, 1, 1),
    "one tap": (2, 40, 24, 9, 1, 1, 1, 1),
    "strided": (2, 3, 16, 21, 7, 2, 1, 1),
    "dilated": (2, 6, 10, 12, 3, 1, 2, 2),
    "depthwise": (2, 12, 12, 15, 3, 1, 1, 12),
    "volume": (3, 4, 6, 6, 3, 1, 1, 1),
    "signal": (1, 8, 8, 40, 3, 1, 1, 1),
    "many channels": (2, 500, 8, 4, 3, 1, 1, 1),
}


@pytest.fixture(params=[1, 2, 4])
def threads(request: pytest.FixtureRequest) -> Iterator[int]:
    before = torch.get_num_threads()
    torch.set_num_threads(request.param)
    yield request.param
    torch.set_num_threads(before)


def cancelling(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Return values that differ much in size, so that the order of additions shows in their sums."""
    return (torch.randn(shape) * 2.0 ** torch.randint(-6, 6, shape)).to(dtype)


def operands(name: str, dtype: torch.dtype) -> tuple[Tensor, Tensor, dict[str, int]]:
    torch.manual_seed(1)
    dims, channels, features, width, kernel, stride, dilation, groups = SHAPES[name]
    x = cancelling(MOST, channels, *[width] * dims, dtype=dtype)
    w = cancelling(features, channels // groups, *[kernel] * dims, dtype=dtype)
    return x, w, {"stride": stride, "padding": kernel // 2, "dilation": dilation, "groups": groups}


def run(x: Tensor, w: Tensor, sizes: dict[str, int]) -> tuple[Tensor, Tensor]:
    """Return the result, and the gradient of the input for a gradient that depends on the result alone."""
    own = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = OURS[x.dim() - 2](own, w, w.flatten()[: w.shape[0]], batch_invariant=True, workspace="none", **sizes)
    y.backward(y.detach())
    assert own.grad is not None
    return y.detach(), own.grad


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("name", SHAPES)
def test_a_sample_has_the_same_bits_in_each_batch(
    name: str, dtype: torch.dtype, layout: torch.memory_format, threads: int
) -> None:
    x, w, sizes = operands(name, dtype)
    if layout == torch.channels_last:
        if x.dim() != 4:
            pytest.skip("PyTorch has this format for images alone")
        x, w = x.to(memory_format=layout), w.to(memory_format=layout)
    whole = run(x, w, sizes)
    for n in range(1, MOST):
        for first in range(MOST) if n == 1 else {0, (MOST - n) // 2, MOST - n}:
            part = run(x[first : first + n], w, sizes)
            assert all(
                torch.equal(own, all_[first : first + n]) for own, all_ in zip(part, whole, strict=True)
            )
    neighbours = x.clone()
    neighbours[1:] = torch.nan
    assert torch.equal(run(neighbours, w, sizes)[0][0], whole[0][0])


def test_the_variables_make_everything_batch_invariant_and_strict(cache_path: Path) -> None:
    script = (
        "import numpy as np, torch\n"
        "import mucudnn, mucudnn.torch as mt\n"
        "def values(*shape): return torch.randn(shape) * 2.0 ** torch.randint(-6, 6, shape)\n"
        "x, w = values(9, 40, 9, 9), values(24, 40, 1, 1)\n"
        "layers = torch.nn.Conv2d(40, 24, 1), torch.nn.ConvTranspose2d(24, 4, 3)\n"
        "model = mt.convert(torch.nn.Sequential(*layers))\n"
        "ways = (lambda x: mucudnn.convolution_forward(x.numpy(), w.numpy()), lambda x: mt.conv2d(x, w),\n"
        "        lambda x: model(x).detach())\n"
        "for way in ways:\n"
        "    assert np.array_equal(way(x)[3:5], way(x[3:5])), way\n"
        "assert str(mt.plan(model, x).promise) == 'numerics=strict, batch_invariant'\n"
    )
    promises = {"MUCUDNN_BATCH_INVARIANT": "1", "MUCUDNN_NUMERICS": "strict"}
    ran = programs.run(sys.executable, "-c", script, **promises)
    assert ran.returncode == 0, ran.stderr


def test_an_algorithm_that_varies_runs_in_slices_of_one_sample_and_others_do_not() -> None:
    torch.manual_seed(1)
    slices = {}
    for name, (dims, *_) in SHAPES.items():
        x, w, sizes = operands(name, torch.float32)
        made = prepare_operands(
            dims, x, w, None, *sizes.values(), workspace="none", plan=None, fallback=False,
            promise=str(Promise(batch_invariant=True, choice="fixed")),
        )  # fmt: skip
        configuration = prepared(made.calls(["forward"])["forward"]).configuration
        slices[name] = len(configuration.parts)
    assert set(slices.values()) == {1, MOST}, slices


@pytest.mark.parametrize("numerics", ["fast", "strict"])
@pytest.mark.parametrize(("name", "shape"), [("resnet18", (3, 64, 64)), ("unet3d", (1, 16, 16, 16))])
def test_whole_networks_give_a_sample_the_same_bits_in_each_batch(
    name: str, shape: tuple[int, ...], numerics: str
) -> None:
    if name == "resnet18" and find_spec("torchvision") is None:
        pytest.skip("there is no torchvision")
    model: Any = mt.convert(build(name).eval(), batch_invariant=True, numerics=numerics)
    if name == "resnet18":
        model.fc = nn.Identity()  # PyTorch's matrix products depend on the mini-batch
    torch.manual_seed(3)
    x = torch.randn(6, *shape)
    with torch.no_grad():
        whole = model(x)
        for n, first in ((1, 0), (1, 5), (2, 3), (3, 1), (5, 1)):
            assert torch.equal(model(x[first : first + n]), whole[first : first + n]), (n, first)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_transposed_convolutions_keep_the_bits(dims: int) -> None:
    torch.manual_seed(3)
    kind = layer_class("ConvTranspose", dims)
    model = nn.Sequential(layer_class("Conv", dims)(4, 40, 1), kind(40, 6, 3, 2, 1, output_padding=1))
    x = torch.randn(8, 4, *[5] * dims)
    expected = model(x)
    mt.convert(model, batch_invariant=True)
    whole = model(x)
    torch.testing.assert_close(whole, expected)
    for n, first in ((1, 0), (1, 7), (3, 2)):
        assert torch.equal(model(x[first : first + n]), whole[first : first + n])
    assert type(mt.restore(model)[1]) is kind


def test_a_warning_says_where_pytorch_runs_a_convolution() -> None:
    x = torch.randn(2, 3, 8, 8, dtype=torch.complex64)
    for make in (nn.Conv2d, nn.ConvTranspose2d):
        layers = nn.Conv2d(3, 3, 1), make(3, 3, 3, dtype=torch.complex64)
        model = mt.convert(nn.Sequential(*layers), batch_invariant=True)
        with pytest.warns(MucudnnWarning, match="whose result does not promise 'batch_invariant'"):
            model[1](x)
        with warnings.catch_warnings(action="error"):
            mt.convert(mt.restore(model))[1](x)


def test_a_planned_and_a_compiled_network_keep_the_bits() -> None:
    torch.manual_seed(3)
    layers = nn.Conv2d(3, 16, 7, stride=2, padding=3), nn.ReLU(), nn.Conv2d(16, 8, 1)
    model, x = nn.Sequential(*layers), torch.randn(8, 3, 32, 32)
    with torch.no_grad():
        plan = mt.plan(model, x, workspace="1MiB", batch_invariant=True)
        whole = mt.convert(model, plan=plan)(x)
        compiled = torch.compile(model, backend="aot_eager")
        for run in (model, compiled):
            for n, first in ((1, 0), (1, 7), (3, 2)):
                assert torch.equal(run(x[first : first + n]), whole[first : first + n])
    assert "batch_invariant" in str(model)
    assert "Promised: batch_invariant." in str(mt.summary(model, x))


def test_a_call_refuses_a_plan_without_the_promise() -> None:
    model, x = nn.Sequential(nn.Conv2d(3, 4, 3)), torch.randn(2, 3, 8, 8)
    plan = mt.plan(model, x, choice="fixed")
    with pytest.raises(UsageError, match="the plan does not promise batch_invariant"):
        mt.conv2d(x, model[0].weight, model[0].bias, plan=plan, batch_invariant=True)


def test_a_fixed_choice_measures_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mucudnn.arrays.choosing.benchmark", None)
    x, w = torch.randn(4, 6, 11, 13), torch.randn(5, 6, 3, 3)
    result = mt.conv2d(x, w, choice="fixed")
    torch.testing.assert_close(result, torch.conv2d(x, w))
