"""Operations run again, within modules and between them: convolutions, norms, sums and concatenations.

All steps run with late streams, in which a copy that nobody waits for has not happened.
"""

from dataclasses import replace
from unittest.mock import patch

import memory_recomputing
import pytest
from memory_steps import quick_plan, train, warnings_of
from needs_torch import mt, torch
from torch import Tensor, nn
from torch.nn import functional

from mucudnn.errors import MucudnnWarning
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.torch.tracing.trace import trace_model

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("only_with_late_streams")]


class Block(nn.Module):
    """Two convolutions and norms, functional activations in and out of place, and a shortcut."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(width), nn.BatchNorm2d(width)

    def forward(self, x: Tensor) -> Tensor:
        inner = functional.relu(self.norm1(self.first(x)))
        inner = self.norm2(self.second(inner))
        inner += x
        return functional.relu(inner, inplace=True)


class Joined(nn.Module):
    """Blocks whose results are concatenated, scaled and convolved."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.one, self.two = nn.Conv2d(3, 8, 3, padding=1), Block(8), Block(8)
        self.scale = nn.Parameter(torch.ones(24, 1, 1))
        self.last = nn.Conv2d(24, 8, 3, padding=1)

    def between(self, x: Tensor) -> Tensor:
        """Return what the last convolution gets."""
        return functional.silu(x)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        first = self.one(x)
        joined = torch.cat([x, first, self.two(first)], 1) * self.scale
        return self.last(self.between(joined)).mean((2, 3))


def plan_without_offload(model: nn.Module, x: Tensor) -> MemoryPlan:
    """Return a plan at the floor that recomputes as much as it can."""
    return quick_plan(model, x, "joint", host_memory=0)


def recomputed(plan: MemoryPlan) -> set[str]:
    """Return the names of the tensors that are computed again."""
    return {tensor.name for tensor in plan.tensors if tensor.choice == "recompute"}


@pytest.fixture
def joined() -> nn.Module:
    torch.manual_seed(1)
    return Joined().cuda()


def recompute(model: nn.Module, x: Tensor, *wanted: str) -> MemoryPlan:
    """Return a plan that recomputes the wanted tensors, by default most, and keeps the others."""
    return memory_recomputing.recompute(quick_plan(model, x, "joint", memory=2**40), model, x, *wanted)


@pytest.mark.parametrize("variant", ["plain", "channels_last", "autocast"])
def test_results_and_statistics_are_bit_equal(joined: nn.Module, x: Tensor, variant: str) -> None:
    if variant == "channels_last":
        joined = joined.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    is_cast = variant == "autocast"
    stock = train(joined, x, is_cast)
    with torch.autocast("cuda", torch.float16, is_cast):
        plan = recompute(joined, x)
    assert len(recomputed(plan)) >= 2
    mt.apply(joined, plan)
    for _ in range(2):
        observed = train(joined, x, is_cast)
        assert observed.equals(stock)
        assert observed.peak < stock.peak


def test_memory_is_as_predicted(joined: nn.Module, x: Tensor) -> None:
    stock = train(joined, x)
    plan = plan_without_offload(joined, x)
    assert recomputed(plan)
    mt.apply(joined, plan)
    observed = train(joined, x)
    assert observed.equals(stock)
    assert observed.peak <= 1.03 * plan.peak < stock.peak


def test_a_tensor_is_computed_again_from_an_offloaded_one(joined: nn.Module, x: Tensor) -> None:
    stock = train(joined, x)
    again = recompute(joined, x, "mul")
    tensors = quick_plan(joined, x).tensors
    (mul,) = (tensor for tensor in again.tensors if tensor.choice == "recompute")
    assert {tensor.name for tensor in tensors if tensor.choice == "offload"} >= set(mul.sources)
    mixed = tuple(mul if tensor.name == mul.name else tensor for tensor in tensors)
    order = tuple(tensor.order for tensor in mixed if tensor.choice == "offload")[::-1]
    mt.apply(joined, replace(quick_plan(joined, x), tensors=mixed, fetch_order=order))
    assert warnings_of(joined, x, stock) == []


def test_offloaded_tensors_leave_the_device_while_operations_are_noted(joined: nn.Module, x: Tensor) -> None:
    stock = train(joined, x)
    plan = quick_plan(joined, x, "joint")
    assert recomputed(plan)
    assert any(tensor.choice == "offload" for tensor in plan.tensors)
    mt.apply(joined, plan)
    assert warnings_of(joined, x, stock) == []
    assert train(joined, x).peak <= 1.03 * plan.peak


def test_every_tensor_that_can_be_recomputed_alone_is_right(joined: nn.Module, x: Tensor) -> None:
    stock = train(joined, x)
    possible = trace_model(joined, x).replays
    assert len(possible) >= 5
    for chosen in possible:
        mt.apply(joined, recompute(joined, x, chosen))
        assert warnings_of(joined, x, stock) == [], chosen


def test_a_tensor_that_other_operations_made_stays_on_the_device(joined: nn.Module, x: Tensor) -> None:
    plan = recompute(joined, x, "mul")
    with patch.object(Joined, "between", lambda self, x: functional.silu(x.add_(torch.rand_like(x)))):
        torch.manual_seed(2)
        stock = train(joined, x)
        mt.apply(joined, plan)
        torch.manual_seed(2)
        with pytest.warns(MucudnnWarning, match="their results stay on the device: the first is mul"):
            assert train(joined, x).equals(stock)
