"""Under a memory plan, modules within a model that `torch.compile` compiles stay compiled."""

import copy
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
from memory_at_floor import plan_at_floor
from needs_torch import mt, torch

from mucudnn.errors import MucudnnWarning, UsageError
from mucudnn.torch.training.apply import runtime_of

nn = torch.nn
# The compiler asks whether its inputs, which earlier layers made, have gradients.
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")


@pytest.fixture(autouse=True)
def _fresh_compiler(undivided_on_cpu: None) -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


class Block(nn.Module):
    """A convolution with a shortcut."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.norm = nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.norm(self.inner(x)).relu().sigmoid()


class Counting:
    """A backend of the compiler that counts the graphs that it compiles."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.graphs += 1
        return torch._dynamo.lookup_backend("aot_eager")(*args, **kwargs)


def model_of_blocks() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()),
        Block(),
        nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 4, 1)),
    )


def compile_block(model: Any, way: str) -> Counting:
    """Compile the model's block, and return the backend that counts."""
    backend = Counting()
    if way == "in place":
        model[1].compile(backend=backend)
    else:
        model[1] = torch.compile(model[1], backend=backend)
    return backend


X = torch.linspace(-1, 1, 4 * 3 * 40 * 40).reshape(4, 3, 40, 40)


def train(model: Any) -> list[torch.Tensor]:
    """Train for three steps. Return the parameters and buffers."""
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    for _ in range(3):
        model(X).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.state_dict().values())


@pytest.mark.parametrize("policy", ["all", "joint"])
@pytest.mark.parametrize("way", ["in place", "wrapped"])
def test_a_compiled_block_is_compiled_once_and_the_rest_is_as_planned(way: str, policy: str) -> None:
    stock, under_plan = model_of_blocks(), model_of_blocks()
    compile_block(stock, way)
    backend = compile_block(under_plan, way)
    plan = plan_at_floor(under_plan, X, policy)
    assert backend.graphs == 0
    mt.apply(under_plan, plan)
    assert all(map(torch.equal, train(under_plan), train(stock)))
    assert backend.graphs == 1
    assert runtime_of(under_plan).lanes.copies > 0
    # The block saves its input, and only itself knows what else it saves.
    assert {tensor.name: tensor.choice for tensor in plan.tensors}["0.2"] == "keep"
    assert not [tensor for tensor in plan.tensors if tensor.module.startswith("1")]
    mt.restore(under_plan)
    assert not [module for module in under_plan.modules() if module._forward_hooks]
    under_plan(X).sum().backward()
    assert backend.graphs == 1


@pytest.mark.parametrize("way", ["in place", "wrapped"])
def test_a_block_that_is_compiled_after_the_plan_gives_way_with_one_warning(way: str) -> None:
    stock, under_plan = model_of_blocks(), model_of_blocks()
    mt.apply(under_plan, plan_at_floor(under_plan, X, "all"))
    for model in (stock, under_plan):
        backend = compile_block(model, way)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert all(map(torch.equal, train(under_plan), train(stock)))
    messages = [str(each.message) for each in caught if each.category is MucudnnWarning]
    assert len(messages) == 1
    assert "the memory plan is not followed: modules were compiled" in messages[0]
    assert backend.graphs == 1


def test_a_plan_for_a_compiled_block_is_not_for_an_uncompiled_one() -> None:
    compiled = model_of_blocks()
    compile_block(compiled, "in place")
    with pytest.raises(UsageError, match="for another model"):
        mt.apply(model_of_blocks(), plan_at_floor(compiled, X, "all"))
    with pytest.raises(UsageError, match="for another model"):
        mt.apply(copy.copy(compiled), plan_at_floor(model_of_blocks(), X, "all"))
    with pytest.raises(UsageError, match="the model is compiled"):
        mt.apply(torch.compile(compiled, backend="eager"), plan_at_floor(compiled, X, "all"))
