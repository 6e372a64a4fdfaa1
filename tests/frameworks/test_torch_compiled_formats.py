"""Compiled code writes the input of a convolution in the memory format in which the engine reads it."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from dimensions import CHANNELS_LAST, layer_class
from needs_torch import mt, torch
from torch import Tensor, nn

from mucudnn.torch.compiling import graph_pass, operators, unknown_sizes
from mucudnn.torch.compiling.operators import CompiledCall, EngineChoice

pytestmark = pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec:FutureWarning")  # Inductor gives it
inductor_config = pytest.importorskip("torch._inductor.config")


class Joined(nn.Module):
    """Convolutions whose results are concatenated and convolved again, as in a U-Net's decoder."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        conv = layer_class("Conv", dims)
        self.first, self.second = conv(3, 8, 3, padding=1), conv(8, 8, 3, padding=1)
        self.norm, self.last = layer_class("InstanceNorm", dims)(8), conv(16, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        first = torch.relu(self.norm(self.first(x)))
        return self.last(torch.cat((first, self.second(first)), dim=1))  # type: ignore[no-any-return]


@pytest.fixture
def copied(fresh_compiler: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Let the engine run `Joined.last`. Yield the passes that got x or dy in another format than theirs."""
    passes, copies, run = list[str](), list[str](), operators.run

    def choose(call: CompiledCall, *_: Any) -> EngineChoice | None:
        return EngineChoice(call.x[0], "GEMM") if call.w[1] == 16 else None

    def noted(call: CompiledCall, choice: EngineChoice, first: Tensor, second: Tensor, third: Any) -> Tensor:
        form = CHANNELS_LAST[first.dim()] if call.channels_last else torch.contiguous_format
        tensors = (first, second) if call.pass_ == "backward_filter" else (first,)
        passes.append(call.pass_)
        copies.extend(call.pass_ for each in tensors if not each.is_contiguous(memory_format=form))
        return run(call, choice, first, second, third)

    monkeypatch.setattr(graph_pass, "choose", choose)
    monkeypatch.setattr(unknown_sizes, "choose", choose)
    monkeypatch.setattr(operators, "run", noted)
    yield copies
    assert passes, "the engine has run"


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("dims", [2, 3])
def test_inference_copies_nothing(dims: int, is_dynamic: bool, copied: list[str]) -> None:
    model = Joined(dims).eval()
    compiled = torch.compile(mt.convert(copy.deepcopy(model)), dynamic=is_dynamic)
    with torch.no_grad(), inductor_config.patch(freezing=True):
        for samples in (2, 3):
            x = torch.rand(samples, 3, *(10,) * dims)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    assert copied == []


@pytest.mark.parametrize("dims", [2, 3])
def test_training_copies_nothing(dims: int, copied: list[str]) -> None:
    model, x = Joined(dims), torch.rand(2, 3, *(10,) * dims)
    converted = mt.convert(copy.deepcopy(model))
    for run in (model, torch.compile(converted)):
        run(x).square().mean().backward()
    for ours, stock in zip(converted.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, stock.grad, rtol=1e-3, atol=1e-5)
    assert copied == []
