"""Converted models on a GPU let cuDNN fuse the bias and a ReLU with a convolution, if that is faster."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from needs_torch import mt, torch

from mucudnn.arrays.dispatch import Prepared
from mucudnn.torch.choosing import fusing

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("only_with_cuda")]

LIMIT = "256KiB"


@pytest.fixture(autouse=True)
def _without_gradients_and_tf32() -> Iterator[None]:
    torch.manual_seed(1)
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@pytest.fixture
def fused_ms(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Return a dictionary with the time of every fused pass; that of every other way is 1 ms."""
    times = {"fused": 0.5}
    monkeypatch.setattr(
        fusing, "_time_interleaved", lambda key, operands, fused, present: {present: 1.0, **times}
    )
    return times


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Record the epilogue of each pass that an engine runs."""
    epilogues, run = list[str](), Prepared.run

    def note(self: Prepared, *arguments: Any, **options: Any) -> None:
        epilogues.append(self.problem.epilogue)
        run(self, *arguments, **options)

    monkeypatch.setattr(Prepared, "run", note)
    return epilogues


def image(dtype: Any = torch.float32) -> Any:
    return torch.randn(8, 16, 16, 16).to("cuda", dtype)


def block(channels: int = 32, *, bias: bool = True, inplace: bool = True) -> Any:
    convolution = torch.nn.Conv2d(16, channels, 3, padding=1, bias=bias)
    return torch.nn.Sequential(convolution, torch.nn.ReLU(inplace)).cuda().eval()


def converted(model: Any) -> Any:
    """Return a converted copy that decides in its first call."""
    return mt.convert(copy.deepcopy(model), workspace=LIMIT, budget="none")


def exact(model: Any, x: Any) -> Any:
    return mt.restore(copy.deepcopy(model)).cpu().double()(x.cpu().double())


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("inplace", [True, False])
def test_a_sequential_runs_a_convolution_and_its_relu_at_once(
    bias: bool, inplace: bool, memory_format: Any, fused_ms: dict[str, float], runs: list[str]
) -> None:
    model, x = converted(block(bias=bias, inplace=inplace)), image().to(memory_format=memory_format)
    y = model(x)
    assert runs[-1] == "+bias" * bias + "+relu"
    runs.clear()
    assert torch.equal(model(x), y)
    assert runs == ["+bias" * bias + "+relu"]
    assert y.stride() == mt.restore(model)(x).stride()
    torch.testing.assert_close(y.cpu().double(), exact(model, x), rtol=1e-5, atol=1e-5)


class Named(torch.nn.Module):
    """A block, not an nn.Sequential: its forward calls the two modules by name."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.relu = torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.ReLU()

    def forward(self, x: Any) -> Any:
        x = self.conv(x)
        return self.relu(x)


def test_a_block_runs_a_convolution_and_the_relu_that_alone_reads_it_at_once(
    fused_ms: dict[str, float], runs: list[str]
) -> None:
    model, x = converted(Named().cuda().eval()), image()
    y = model(x)
    assert runs[-1] == "+bias+relu"
    torch.testing.assert_close(y.cpu().double(), exact(model, x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_bias_alone_is_fused(dtype: Any, fused_ms: dict[str, float], runs: list[str]) -> None:
    model, x = converted(torch.nn.Conv2d(16, 32, 3, padding=1).cuda().to(dtype)), image(dtype)
    y = model(x)
    assert runs[-1] == "+bias"
    error = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(y.cpu().double(), exact(model, x), rtol=error, atol=error)


def test_a_fused_pass_is_divided_within_the_limit(
    fused_ms: dict[str, float], runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, seen = converted(block()), image(), list[Prepared]()
    run = Prepared.run
    monkeypatch.setattr(Prepared, "run", lambda self, *args: seen.append(self) or run(self, *args))
    model(x)
    assert seen[-1].problem.epilogue == "+bias+relu"
    assert seen[-1].workspace <= 2**18
    assert "+bias" in str(mt.summary(model, x))  # its hooks see the ReLU alone


def test_casts_of_autocast_are_fused(fused_ms: dict[str, float], runs: list[str]) -> None:
    model, x = converted(block()), image()
    with torch.autocast("cuda", torch.float16):
        y = model(x)
    assert y.dtype is torch.float16
    assert runs[-1] == "+bias+relu"
    torch.testing.assert_close(y.cpu().double(), exact(model, x), rtol=2e-2, atol=2e-2)


def test_a_slower_fused_pass_is_not_taken(fused_ms: dict[str, float], runs: list[str]) -> None:
    fused_ms["fused"] = 0.99
    model, x = converted(block(24)), image()
    for _ in range(2):
        torch.testing.assert_close(model(x).cpu().double(), exact(model, x), rtol=1e-5, atol=1e-5)
    assert set(runs) <= {""}


def test_a_fused_pass_is_measured(runs: list[str]) -> None:
    model, x = converted(block(40)), image()
    torch.testing.assert_close(model(x).cpu().double(), exact(model, x), rtol=1e-5, atol=1e-5)
    assert "+bias+relu" in runs


def test_a_relu_keeps_nan(fused_ms: dict[str, float], runs: list[str]) -> None:
    model, x = converted(block()), image()
    x[0, 0, 5, 5] = float("nan")
    y = model(x)
    assert runs[-1] == "+bias+relu"
    assert y[0, :, 5, 5].isnan().all()


def test_nothing_is_fused_for_gradients_or_hooks(fused_ms: dict[str, float], runs: list[str]) -> None:
    model, x = converted(block()), image()
    with torch.enable_grad():
        model(x).sum().backward()
    assert set(runs) <= {""}
    seen = list[Any]()
    model[1].register_forward_hook(lambda module, inputs, output: seen.append(output))
    y = model(x)
    assert seen[0] is y
    assert runs[-1] == "+bias"  # the hook sees the ReLU alone


def test_a_restored_sequential_has_its_own_class(fused_ms: dict[str, float], runs: list[str]) -> None:
    model = converted(block())
    assert type(model) is not torch.nn.Sequential
    assert type(mt.restore(model)) is torch.nn.Sequential
