"""Converted models on a GPU let cuDNN fuse the bias with a convolution, if that is faster."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from needs_torch import mt, torch

from mucudnn.arrays.dispatch import Prepared
from mucudnn.torch.choosing import trials
from mucudnn.torch.choosing.sightings import Sightings

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("only_with_cuda")]

LIMIT = "256KiB"


@pytest.fixture(autouse=True)
def _without_gradients_and_tf32() -> Iterator[None]:
    torch.manual_seed(1)
    with torch.no_grad(), torch.backends.cudnn.flags(enabled=True, allow_tf32=False):
        yield


@pytest.fixture(autouse=True)
def _measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the first call with a shape be measured, so that these tests need not repeat their calls."""
    monkeypatch.setattr(Sightings, "earns_measuring", lambda *_: True)


@pytest.fixture
def fused_ms(monkeypatch: pytest.MonkeyPatch) -> dict[str, float]:
    """Return a dictionary with the time of every fused pass; that of every other way is 1 ms."""
    times = {"fused": 0.5}
    monkeypatch.setattr(trials, "time_ways", lambda device, ways: dict.fromkeys(ways, 1.0) | times)
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


def convolution(channels: int = 32) -> Any:
    return torch.nn.Conv2d(16, channels, 3, padding=1).cuda().eval()


def converted(model: Any) -> Any:
    """Return a converted copy that decides in its first call."""
    return mt.convert(copy.deepcopy(model), workspace=LIMIT, budget="none")


def exact(model: Any, x: Any) -> Any:
    return mt.restore(copy.deepcopy(model)).cpu().double()(x.cpu().double())


@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last])
def test_a_bias_is_fused_and_the_strides_stay(
    memory_format: Any, fused_ms: dict[str, float], runs: list[str]
) -> None:
    model, x = converted(convolution()), image().to(memory_format=memory_format)
    y = model(x)
    assert runs[-1] == "+bias"
    runs.clear()
    assert torch.equal(model(x), y)
    assert runs == ["+bias"]
    assert y.stride() == mt.restore(model)(x).stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_a_bias_of_each_type_is_fused(dtype: Any, fused_ms: dict[str, float], runs: list[str]) -> None:
    model, x = converted(convolution().to(dtype)), image(dtype)
    y = model(x)
    assert runs[-1] == "+bias"
    error = 1e-5 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(y.cpu().double(), exact(model, x), rtol=error, atol=error)


def test_a_fused_pass_is_divided_within_the_limit(
    fused_ms: dict[str, float], runs: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model, x, seen = converted(convolution()), image(), list[Prepared]()
    run = Prepared.run
    monkeypatch.setattr(Prepared, "run", lambda self, *args: seen.append(self) or run(self, *args))
    model(x)
    assert seen[-1].problem.epilogue == "+bias"
    assert seen[-1].workspace <= 2**18
    assert "+bias" in str(mt.summary(model, x))


def test_casts_of_autocast_are_fused(fused_ms: dict[str, float], runs: list[str]) -> None:
    model, x = converted(convolution()), image()
    with torch.autocast("cuda", torch.float16):
        y = model(x)
    assert y.dtype is torch.float16
    assert runs[-1] == "+bias"
    torch.testing.assert_close(y.cpu().double(), exact(model, x), rtol=2e-2, atol=2e-2)


def test_a_slower_fused_pass_is_not_taken(fused_ms: dict[str, float], runs: list[str]) -> None:
    fused_ms["fused"] = 0.99
    model, x = converted(convolution(24)), image()
    for _ in range(2):
        torch.testing.assert_close(model(x).cpu().double(), exact(model, x), rtol=1e-5, atol=1e-5)
    assert set(runs) <= {""}


def test_a_fused_pass_is_measured(runs: list[str]) -> None:
    model, x = converted(convolution(40)), image()
    torch.testing.assert_close(model(x).cpu().double(), exact(model, x), rtol=1e-5, atol=1e-5)
    assert "+bias" in runs


def test_nothing_is_fused_for_gradients(fused_ms: dict[str, float], runs: list[str]) -> None:
    model, x = converted(convolution()), image()
    with torch.enable_grad():
        model(x).sum().backward()
    assert set(runs) <= {""}
