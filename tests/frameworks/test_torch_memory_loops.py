"""Common training loops give bit-identical parameters with and without a memory plan."""

import copy
import warnings
from collections.abc import Callable
from typing import Any

import pytest
from memory_at_floor import plan_at_floor
from needs_torch import mt, torch
from torch.utils.checkpoint import checkpoint

from mucudnn.errors import MucudnnWarning
from mucudnn.torch.training import apply
from mucudnn.torch.training.apply import runtime_of

nn = torch.nn
_divide = apply._divide
pytestmark = pytest.mark.usefixtures("undivided_on_cpu")


class Two(nn.Module):
    """A model with two inputs and two results, one of them in a dict.

    With `is_cast` it enables autocast itself, and with `has_checkpoint` it computes a layer again.
    """

    def __init__(self, is_cast: bool = False) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.is_cast, self.has_checkpoint = is_cast, False

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16, enabled=self.is_cast):
            inner = self.norm(self.first(x)).relu() * scale
            if self.has_checkpoint:
                middle = checkpoint(self.second, inner, use_reentrant=True)
            else:
                middle = self.second(inner)
            return self.last(middle.relu()), {"inner": inner.mean((2, 3))}


def loss_of(results: Any) -> torch.Tensor:
    y, more = results
    return y.float().square().mean() + more["inner"].float().abs().mean()


def inputs_of(size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(size, 3, 32, 32, generator=generator), torch.rand(8, 1, 1, generator=generator)


def train_plainly(model: Any, optimizer: Any) -> None:
    for seed in range(3):
        loss_of(model(*inputs_of(4, seed))).backward()
        optimizer.step()
        optimizer.zero_grad()


def train_with_a_smaller_last_batch(model: Any, optimizer: Any) -> None:
    for epoch in range(2):
        for seed, size in enumerate((4, 4, 3)):
            loss_of(model(*inputs_of(size, 10 * epoch + seed))).backward()
            optimizer.step()
            optimizer.zero_grad()


def train_with_accumulation(model: Any, optimizer: Any) -> None:
    for seed in range(4):
        (loss_of(model(*inputs_of(4, seed))) / 2).backward()
        if seed % 2:
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


def train_with_an_average(model: Any, optimizer: Any) -> None:
    average = torch.optim.swa_utils.AveragedModel(model)
    for seed in range(3):
        loss_of(model(*inputs_of(4, seed))).backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model)
        with torch.no_grad():
            average(*inputs_of(4, seed))
    model.load_state_dict(average.module.state_dict())


def train_and_keep_results(model: Any, optimizer: Any) -> None:
    kept = []
    for seed in range(3):
        kept.append(model(*inputs_of(4, seed)))
        loss_of(kept[-1]).backward()
        optimizer.step()
        optimizer.zero_grad()


def train_with_a_new_checkpoint(model: Any, optimizer: Any) -> None:
    model.has_checkpoint = True
    train_plainly(model, optimizer)


def train_on_two_graphs_at_once(model: Any, optimizer: Any) -> None:
    for seed in range(0, 6, 2):
        losses = [loss_of(model(*inputs_of(4, seed + number))) for number in range(2)]
        torch.stack(losses).sum().backward()
        optimizer.step()
        optimizer.zero_grad()


# Each loop, and what the one warning of a loop that cannot be followed throughout may say.
LOOPS: dict[str, tuple[Callable[[Any, Any], None], str]] = {
    "plain": (train_plainly, ""),
    "smaller last batch": (train_with_a_smaller_last_batch, "the memory plan is not followed: the input is"),
    "accumulation": (train_with_accumulation, ""),
    "average": (train_with_an_average, ""),
    "kept results": (train_and_keep_results, ""),
    "new checkpoint": (train_with_a_new_checkpoint, "the model does not save the planned tensors"),
    "two graphs at once": (train_on_two_graphs_at_once, "an earlier step's graph still has its host memory"),
}


def planned(model: Any, policy: str) -> Any:
    """Return a copy of the model that runs under a plan at its floor."""
    return mt.apply(copy.deepcopy(model), plan_at_floor(model, inputs_of(4, 0), policy))


@pytest.mark.parametrize("policy", ["all", "joint"])
@pytest.mark.parametrize("is_cast", [False, True], ids=["f32", "autocast in forward"])
@pytest.mark.parametrize("name", LOOPS)
def test_a_loop_gives_stocks_parameters(name: str, is_cast: bool, policy: str) -> None:
    torch.manual_seed(0)
    stock = Two(is_cast)
    under_plan = planned(stock, policy)
    loop, expected = LOOPS[name]
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for model in (stock, under_plan):
            loop(model, torch.optim.SGD(model.parameters(), 0.1, momentum=0.9))
    for (key, value), other in zip(stock.state_dict().items(), under_plan.state_dict().values(), strict=True):
        assert torch.equal(value, other), key
    messages = [str(each.message) for each in caught if each.category is MucudnnWarning]
    assert len(messages) <= bool(expected)
    assert all(expected in message for message in messages)
    if policy == "all":
        assert runtime_of(under_plan).lanes.copies > 0


def test_restore_leaves_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apply, "_divide", _divide)  # the convolutions become mucudnn's, too
    model = Two()
    before = {name: set(vars(module)) for name, module in model.named_modules()}
    hooks = {name: len(module._forward_hooks) for name, module in model.named_modules()}
    under_plan = planned(model, "all")
    with pytest.warns(MucudnnWarning, match="leaves a convolution to PyTorch"):  # its kernels are a GPU's
        train_plainly(under_plan, torch.optim.SGD(under_plan.parameters(), 0.1))
    mt.restore(under_plan)
    assert {name: set(vars(m)) for name, m in under_plan.named_modules()} == before
    assert {name: len(m._forward_hooks) for name, m in under_plan.named_modules()} == hooks
    assert not [p for p in under_plan.parameters() if p._backward_hooks]
    assert not nn.modules.module._has_any_global_hook()
