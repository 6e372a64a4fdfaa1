"""The memory formats in which Inductor hands tensors to the engine."""

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from needs_torch import mt, torch
from torch import Tensor, nn

from mucudnn.torch.compiling import graph_pass, operators, unknown_sizes
from mucudnn.torch.compiling.operators import CompiledCall, EngineChoice

pytestmark = pytest.mark.filterwarnings(r"ignore:`isinstance\(treespec:FutureWarning")  # Inductor gives it
inductor_config = pytest.importorskip("torch._inductor.config")
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


class Joined(nn.Module):
    """Two convolutions, whose results are joined, and a third, which reads them as a U-Net's decoder does."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        conv, norm = ((nn.Conv2d, nn.InstanceNorm2d), (nn.Conv3d, nn.InstanceNorm3d))[dims - 2]
        self.first, self.second = conv(3, 8, 3, padding=1), conv(8, 8, 3, padding=1)
        self.norm, self.last = norm(8), conv(16, 4, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        first = torch.relu(self.norm(self.first(x)))
        return self.last(torch.cat((first, self.second(first)), dim=1))  # type: ignore[no-any-return]


@pytest.fixture
def copied(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Let the engine run convolutions of 16 channels. Yield what it had to copy."""
    copies, run = list[str](), operators.run

    def choose(call: CompiledCall, *_: Any) -> EngineChoice | None:
        return EngineChoice(call.x[0], "GEMM") if call.w[1] == 16 else None

    def noted(call: CompiledCall, choice: EngineChoice, first: Tensor, second: Tensor, third: Any) -> Tensor:
        form = CHANNELS_LAST[first.dim()] if call.channels_last else torch.contiguous_format
        tensors = {"backward_data": (first,), "forward": (first,)}.get(call.pass_, (first, second))
        runs.append(call.pass_)
        copies.extend(call.pass_ for each in tensors if not each.is_contiguous(memory_format=form))
        return run(call, choice, first, second, third)

    runs = list[str]()
    monkeypatch.setattr(graph_pass, "choose", choose)
    monkeypatch.setattr(unknown_sizes, "choose", choose)
    monkeypatch.setattr(operators, "run", noted)
    torch.compiler.reset()
    with (
        inductor_config.patch(fx_graph_cache=False),
        torch._functorch.config.patch(enable_autograd_cache=False),
    ):
        yield copies
    assert runs


@pytest.mark.parametrize("is_dynamic", [False, True])
@pytest.mark.parametrize("dims", [2, 3])
def test_inference_copies_nothing(dims: int, is_dynamic: bool, copied: list[str]) -> None:
    model, x = Joined(dims).eval(), torch.rand(2, 3, *(10,) * dims)
    compiled = torch.compile(mt.convert(copy.deepcopy(model)), dynamic=is_dynamic)
    with torch.no_grad(), inductor_config.patch(freezing=True):
        for size in (2, 3):
            batch = x[:1].repeat(size, *(1,) * (dims + 1))
            torch.testing.assert_close(compiled(batch), model(batch), rtol=1e-4, atol=1e-5)
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
