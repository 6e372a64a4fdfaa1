"""Steps under a memory plan give stock PyTorch's results, bit by bit, also on the CPU without streams.

The copies to host memory are real, but are made at once. Kernels stay PyTorch's own.
"""

import copy
import gc
from collections.abc import Callable
from typing import Any

import pytest
from memory_at_floor import plan_at_floor
from needs_torch import mt, torch
from torch.utils.checkpoint import checkpoint

from mucudnn.errors import MucudnnWarning
from mucudnn.torch.training.apply import runtime_of
from mucudnn.torch.training.planned_step import Record

nn = torch.nn
pytestmark = pytest.mark.usefixtures("undivided_on_cpu")


class Calling(nn.Module):
    """Two convolutions, and a function of this module and its input between them."""

    def __init__(self, function: Callable[[Any, torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function
        self.first, self.norm = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.second, self.last = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 4, 1)
        self.average = nn.BatchNorm2d(8, momentum=None)

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.function(self, self.norm(self.first(x)).relu()).relu())


class Square(torch.autograd.Function):
    """A square that keeps its input outside of what autograd saves."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.x, ctx.power = x, 2
        return x * x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        return ctx.power * ctx.x * gradient


class Doubled(torch.autograd.Function):
    """A product in place, which saves its result and None."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x.mul_(2))
        ctx.save_for_backward(x, None)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        x, _ = ctx.saved_tensors
        return 2 * gradient + 0 * x


def hooked(module: Any, x: torch.Tensor) -> torch.Tensor:
    x = module.second(x)
    if x.requires_grad:
        x.register_hook(lambda gradient: 2 * gradient)
    return x.tanh()


def without_gradient(module: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        scale = module.second(x).sigmoid()
    return module.second(x) * scale


def own_hooks(module: Any, x: torch.Tensor) -> torch.Tensor:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        x = module.second(x).tanh()
    return x * x


KINDS: dict[str, Callable[[Any, torch.Tensor], torch.Tensor]] = {
    "checkpoint": lambda m, x: checkpoint(lambda x: m.second(x).tanh(), x, use_reentrant=False),
    "reentrant checkpoint": lambda m, x: checkpoint(lambda x: m.second(x).tanh(), x, use_reentrant=True),
    "average": lambda m, x: m.average(m.second(x)).relu(),
    "function": lambda m, x: Square.apply(m.second(x)),
    "function in place": lambda m, x: Doubled.apply(m.second(x)),
    "hook": hooked,
    "no_grad": without_gradient,
    "hooks for saved tensors": own_hooks,
    "vmap": lambda m, x: torch.vmap(torch.tanh)(m.second(x)),
    "vmap of a module": lambda m, x: torch.vmap(m.second)(torch.stack([x, x])).sum(0),
    "complex": lambda m, x: torch.fft.ifft2(torch.fft.fft2(m.second(x)).conj()).real.tanh(),
    "twice": lambda m, x: m.second(m.second(x).relu()).sigmoid(),
}


def train(model: nn.Module, x: torch.Tensor, second_order: bool = False) -> list[torch.Tensor]:
    """Make one step from the same state, and return the result, the gradients and the buffers."""
    state = copy.deepcopy(model.state_dict())
    x = x.clone().requires_grad_()
    y = model(x)
    loss = y.square().sum()
    if second_order:
        (gradient,) = torch.autograd.grad(loss, x, create_graph=True)
        loss = gradient.square().sum()
    loss.backward()
    tensors = [y, x.grad, *(p.grad for p in model.parameters() if p.grad is not None), *model.buffers()]
    tensors = [tensor.detach().clone() for tensor in tensors]
    model.zero_grad(set_to_none=True)
    model.load_state_dict(state)
    return tensors


def planned(model: nn.Module, x: torch.Tensor, policy: str, made_for: nn.Module | None = None) -> nn.Module:
    """Return a copy of the model that runs under a plan at its floor."""
    plan = plan_at_floor(made_for or model, x.clone().requires_grad_(), policy)
    return mt.apply(copy.deepcopy(model), plan)


@pytest.mark.parametrize("policy", ["all", "joint"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_unusual_forward_pass_has_stocks_results(kind: str, policy: str) -> None:
    torch.manual_seed(0)
    model, x = Calling(KINDS[kind]), torch.randn(4, 3, 40, 40)
    expected = train(model, x)
    under_plan = planned(model, x, policy)
    for _ in range(2):
        assert all(map(torch.equal, train(under_plan, x), expected))
    if policy == "all":
        assert runtime_of(under_plan).lanes.copies > 0


def test_gradients_of_gradients_are_stocks() -> None:
    torch.manual_seed(0)
    model, x = Calling(lambda m, x: m.second(x).tanh()), torch.randn(4, 3, 40, 40)
    expected = train(model, x, second_order=True)
    for policy in ("all", "joint"):
        tensors = train(planned(model, x, policy), x, second_order=True)
        assert all(map(torch.equal, tensors, expected))


def test_a_new_hook_of_a_module_changes_what_is_computed_again() -> None:
    torch.manual_seed(0)
    model, x = Calling(lambda m, x: m.second(x).tanh()), torch.randn(4, 3, 40, 40)
    under_plan = planned(model, x, "joint")
    assert "first" in {t.name for t in runtime_of(under_plan).plan.tensors if t.choice == "recompute"}
    for each in (model, under_plan):
        each.first.register_forward_hook(lambda module, args, result: 2 * result)
    assert all(map(torch.equal, train(under_plan, x), train(model, x)))


def force(module: Any, x: torch.Tensor) -> torch.Tensor:
    (gradient,) = torch.autograd.grad(module.second(x).tanh().sum(), x, create_graph=True)
    return module.second(gradient)


@pytest.mark.parametrize("policy", ["all", "joint"])
def test_gradients_within_the_forward_pass_are_right_under_a_plan_that_does_not_know_them(
    policy: str,
) -> None:
    torch.manual_seed(0)
    model, x = Calling(force), torch.randn(4, 3, 40, 40)
    expected = train(model, x)
    usual = copy.deepcopy(model)
    usual.function = lambda m, x: m.second(m.second(x).tanh())
    under_plan = planned(model, x, policy, made_for=usual)
    with pytest.warns(MucudnnWarning, match="stay on the device"):
        assert all(map(torch.equal, train(under_plan, x), expected))


def test_an_abandoned_record_raises_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    unraisable: list[Any] = []
    monkeypatch.setattr("sys.unraisablehook", unraisable.append)
    with pytest.raises(NotImplementedError):
        Record(torch.eye(3).to_sparse())  # it has no storage, so that the record is never finished
    model, x = Calling(KINDS["twice"]), torch.randn(4, 3, 40, 40)
    under_plan = planned(model, x, "all")

    def fail(*_: Any) -> None:
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    result = under_plan(x)
    runtime_of(under_plan).slab.give = fail  # type: ignore[method-assign]
    del result
    gc.collect()
    assert not unraisable
