"""Layers whose forward passes change a state of their own have stock PyTorch's gradients under a memory plan.

Whatever the plan computes again reads the state as it was in the forward pass, and changes it no second time.
"""

import copy
import itertools
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch.ao.quantization as quantization
from memory_recomputing import recompute
from needs_torch import mt, torch
from torch import Tensor

from mucudnn.errors import UsageError
from mucudnn.torch.training import apply

nn = torch.nn
pytestmark = pytest.mark.usefixtures("undivided_on_cpu")
parametrizations = nn.utils.parametrizations
X = torch.linspace(-2, 2, 2 * 3 * 32 * 32).reshape(2, 3, 32, 32)


class Layer(nn.Module):
    """A function of the layer and its input; the layer has a counter of each kind."""

    def __init__(self, function: Callable[[Any, Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function
        self.number, self.seen, self.table = 0, [], torch.ones(16, 32, 32)
        self.register_buffer("count", torch.zeros(()))
        self.register_buffer("average", torch.zeros(16, 1, 1))
        self.weight = nn.Parameter(torch.full((16, 1, 1), 3.0))
        self.norm = nn.BatchNorm2d(16)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def count_in_a_buffer(layer: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        layer.count.add_(1)
    return torch.sin(x + layer.count)


def count_in_python(layer: Any, x: Tensor) -> Tensor:
    layer.number += 1
    return torch.sin(x * layer.number)


def count_by_data(layer: Any, x: Tensor) -> Tensor:
    layer.count.data.add_(1)
    return torch.sin(x + layer.count)


def count_in_a_plain_tensor(layer: Any, x: Tensor) -> Tensor:
    layer.table += 1
    return torch.sin(x + layer.table)


def average(layer: Any, x: Tensor) -> Tensor:
    with torch.no_grad():
        layer.average.lerp_(x.mean((0, 2, 3)).view(16, 1, 1), 0.1)
    return torch.sin(x - layer.average)


def average_anew(layer: Any, x: Tensor) -> Tensor:
    layer.average = 0.9 * layer.average + 0.1 * x.detach().mean((0, 2, 3)).view(16, 1, 1)
    return torch.sin(x - layer.average)


def clip_weight(layer: Any, x: Tensor) -> Tensor:
    layer.weight.data.clamp_(max=2.5)
    return torch.sin(x + layer.weight)


def append(layer: Any, x: Tensor) -> Tensor:
    layer.seen.append(x.detach().sum())
    return torch.sin(x * len(layer.seen))


def alternate(layer: Any, x: Tensor) -> Tensor:
    layer.number += 1
    return torch.sin(x) if layer.number % 2 else torch.tanh(x)


@torch.library.custom_op("mucudnn_tests::count", mutates_args=())
def count_in_operator(x: Tensor) -> Tensor:
    """Return the sum of a tensor and the number of the call."""
    return x + next(_calls)


_calls = itertools.count()
count_in_operator.register_fake(torch.empty_like)
count_in_operator.register_autograd(lambda ctx, gradient: gradient)


def change_afterwards(layer: Any, x: Tensor) -> Tensor:
    y = x.clone()
    y.tanh()  # it saves y, but nothing asks for its gradient
    z = torch.sin(y + 1)
    y.mul_(2)
    return z


FUNCTIONS: dict[str, Callable[[Any, Tensor], Tensor]] = {
    "count in a buffer": count_in_a_buffer,
    "count in Python": count_in_python,
    "count by .data": count_by_data,
    "average": average,
    "average anew": average_anew,
    "clipped weight": clip_weight,
    "list": append,
    "alternating": alternate,
    "norm": lambda layer, x: torch.sin(layer.norm(x)),
    "random": lambda layer, x: torch.sin(x * torch.rand(16, 1, 1, device=x.device)),
    "dropout": lambda layer, x: torch.sin(nn.functional.dropout2d(x, 0.3)),
    "change after a dead branch": change_afterwards,
    "operator with a state": lambda layer, x: torch.sin(count_in_operator(x).mul(2)),
}


def convolutions(wrap: Callable[[nn.Module], nn.Module], layer: Callable[[], nn.Module]) -> nn.Module:
    parts: list[nn.Module] = []
    for channels in (3, 16):
        convolution = nn.Conv2d(channels, 16, 3, padding=1, bias=False)
        parts += [wrap(convolution), nn.BatchNorm2d(16), layer(), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 5))


def plain(module: nn.Module) -> nn.Module:
    return module


def quantized() -> nn.Module:
    observer = quantization.MovingAverageMinMaxObserver
    return quantization.FusedMovingAvgObsFakeQuantize(observer, quant_min=0, quant_max=255)


MODELS: dict[str, Callable[[], nn.Module]] = {
    **{name: partial(convolutions, plain, partial(Layer, function)) for name, function in FUNCTIONS.items()},
    "spectral norm": lambda: convolutions(parametrizations.spectral_norm, nn.Identity),
    "spectral norm by hooks": lambda: convolutions(nn.utils.spectral_norm, nn.Identity),
    "instance norm": lambda: convolutions(plain, lambda: nn.InstanceNorm2d(16, track_running_stats=True)),
    "cumulative norm": lambda: convolutions(plain, lambda: nn.BatchNorm2d(16, momentum=None)),
    "RReLU": lambda: convolutions(plain, nn.RReLU),
    "observer": lambda: convolutions(plain, quantization.MinMaxObserver),
    "fused fake quantization": lambda: convolutions(plain, quantized),
}  # fmt: skip


def train(model: nn.Module) -> list[Any]:
    """Train for three steps, of which the last has two forward passes. Return all gradients and the state."""
    global _calls
    _calls = itertools.count()
    gradients = []
    for numbers in ([0], [1], [2, 3]):
        torch.manual_seed(numbers[0])
        losses = [model(X + number).square().mean() for number in numbers]
        torch.stack(losses).sum().backward()
        gradients += [p.grad.clone() for p in model.parameters() if p.grad is not None]
    counts = [layer.number for layer in model.modules() if isinstance(layer, Layer)]
    return [*gradients, *model.buffers(), *map(torch.tensor, counts)]


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore::mucudnn.errors.MucudnnWarning")
def test_gradients_and_state_are_stocks(name: str) -> None:
    torch.manual_seed(0)
    model = MODELS[name]()
    plan = mt.plan_memory(model, X, memory=2**40, device="h200", workspace=0)
    expected = train(copy.deepcopy(model))
    for is_early in (False, True):
        plan = recompute(plan, model, X, is_early=is_early)
        assert "recompute" in {tensor.choice for tensor in plan.tensors}
        assert all(map(torch.equal, train(mt.apply(copy.deepcopy(model), plan)), expected))


class Idiomatic(nn.Sequential):
    """A model that names the class of itself where it means its own class."""

    def forward(self, x: Tensor) -> Tensor:
        return super(self.__class__, self).forward(x)


def test_a_planned_model_keeps_its_class_and_copies_have_no_plan() -> None:
    model = Idiomatic(nn.Conv2d(3, 4, 3), nn.ReLU())
    plan = mt.plan_memory(model, X, memory=2**40, device="h200", workspace=0)
    planned = mt.apply(copy.deepcopy(model), plan)
    assert type(planned) is Idiomatic
    assert torch.equal(planned(X), model(X))
    assert apply.runtime_of(planned).plan is plan
    pickled = pickle.loads(pickle.dumps(planned))
    for other in (copy.copy(planned), copy.deepcopy(planned), pickled, mt.restore(planned)):
        assert vars(other).keys() == vars(model).keys()
        assert torch.equal(other(X), model(X))


def quantize() -> nn.Module:
    observer = quantization.MovingAverageMinMaxObserver
    return quantization.FakeQuantize(observer, quant_min=0, quant_max=255)


@pytest.mark.parametrize("make", [quantize, lambda: Layer(count_in_a_plain_tensor)])
def test_a_layer_that_cannot_be_traced_is_refused_by_name(make: Callable[[], nn.Module]) -> None:
    layer = make()
    with pytest.raises(UsageError, match=rf"module '2' \({type(layer).__name__}\) cannot be traced"):
        mt.plan_memory(convolutions(plain, lambda: layer), X, memory="1GiB", device="h200")
