"""Models whose Python code around tensors decides what they compute, for `test_pipeline_split_kinds`."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from pipeline_cases import WIDTH
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class Kind(nn.Module):
    """Two layers, and code between them that looks at more than the values of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.prepare()

    def prepare(self) -> None:
        """Add what the code between the layers needs."""

    def forward(self, x: Tensor) -> Any:
        return self.last(self.between(torch.tanh(self.first(x)), x))

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        raise NotImplementedError


class IsInstance(Kind):
    def between(self, y: Tensor, x: Tensor) -> Tensor:
        return y + x if isinstance(x, Tensor) else y


class TryExcept(Kind):
    def between(self, y: Tensor, x: Tensor) -> Tensor:
        try:
            return y + x if float(x.detach().abs().sum()) > 0 else y
        except Exception:
            return y


class NoGrad(Kind):
    def between(self, y: Tensor, x: Tensor) -> Tensor:
        with torch.no_grad():
            gate = y.sigmoid()
        return y * gate


class FrozenLayer(Kind):
    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            y = self.first(x)
        return self.last(torch.tanh(y))


class SetGradEnabled(Kind):
    def between(self, y: Tensor, x: Tensor) -> Tensor:
        torch.set_grad_enabled(False)
        gate = y.sigmoid()
        torch.set_grad_enabled(True)
        return y * gate


class AutocastOn(Kind):
    def between(self, y: Tensor, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return self.last(y).to(x.dtype)


class AutocastOff(Kind):
    def between(self, y: Tensor, x: Tensor) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return self.last(y.float())


class Counter(Kind):
    calls = 0

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        self.calls += 1
        return y if self.calls < 3 else y + x


class Dropout(Kind):
    def prepare(self) -> None:
        self.drop = nn.Dropout(0.5)

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        return self.drop(y) + torch.rand_like(x)


class Straight(torch.autograd.Function):
    """The sign, with the gradient of the identity."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return torch.sign(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return gradient


class TensorHook(Kind):
    def between(self, y: Tensor, x: Tensor) -> Tensor:
        y = y * 1
        y.register_hook(lambda gradient: 2 * gradient)
        return y


class Detached(Kind):
    def between(self, y: Tensor, x: Tensor) -> Tensor:
        return y * y.detach().sigmoid()


class HookedInside(Kind):
    def prepare(self) -> None:
        self.inner = Detached()
        self.inner.register_forward_pre_hook(lambda module, args: (2 * args[0],))
        self.inner.register_forward_hook(lambda module, args, result: result + args[0])
        self.inner.register_full_backward_hook(lambda module, inputs, outputs: (3 * inputs[0],))

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        return self.inner(y)


class Hooked(Detached):
    def prepare(self) -> None:
        self.register_forward_hook(lambda module, args, result: 2 * result)


class HookedGradient(Detached):
    def prepare(self) -> None:
        self.register_full_backward_pre_hook(lambda module, outputs: (3 * outputs[0],))


class Halved(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x / 2


class Parametrized(Detached):
    def prepare(self) -> None:
        nn.utils.parametrize.register_parametrization(self.first, "weight", Halved())
        nn.utils.parametrizations.spectral_norm(self.last)


class Tied(Kind):
    def prepare(self) -> None:
        self.branch = KINDS["ByValue"]()

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        return nn.functional.linear(self.branch(y), self.branch.first.weight)


class BatchNorm(Kind):
    def prepare(self) -> None:
        self.norm = nn.BatchNorm1d(WIDTH)

    def between(self, y: Tensor, x: Tensor) -> Tensor:
        return self.norm(y)


@dataclass
class Result:
    y: Tensor
    extra: dict[str, Any]


class InDataclass(IsInstance):
    def forward(self, x: Tensor) -> Result:
        y = super().forward(x)
        return Result(y, {"y": y.abs()})


# Code between the layers of a kind that is one expression.
BETWEEN: dict[str, Callable[[Any, Tensor, Tensor], Tensor]] = {
    "IsTensor": lambda self, y, x: y + x if torch.is_tensor(x) else y,
    "TypeIs": lambda self, y, x: y + x if type(x) is Tensor else y,
    "Callable": lambda self, y, x: y if callable(x) else y + x,
    "AsksForAutocast": lambda self, y, x: y + x if torch.is_autocast_enabled("cpu") else y,
    "Mode": lambda self, y, x: y + x if self.training else y,
    "PythonRandom": lambda self, y, x: y + x if random.random() < 0.5 else y,
    "NumpyRandom": lambda self, y, x: y * float(np.random.rand()),
    "TorchRandom": lambda self, y, x: y + torch.rand(WIDTH),
    "OwnGradient": lambda self, y, x: Straight.apply(y),
    "RequiresGrad": lambda self, y, x: y + x if y.requires_grad else y,
    "ByValue": lambda self, y, x: y + x if x.sum() > 0 else y,
    "BySize": lambda self, y, x: y + x if x.shape[0] > 3 else y,
    "Checkpointed": lambda self, y, x: checkpoint(self.last, y, use_reentrant=False),
}
SIMPLE = [type(name, (Kind,), {"between": between}) for name, between in BETWEEN.items()]
_FAMILIES = Kind, IsInstance, Detached
KINDS = {kind.__name__: kind for family in _FAMILIES for kind in family.__subclasses__()}


class Around(nn.Module):
    """A model with such a module inside."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.before, self.inner, self.after = nn.Linear(WIDTH, WIDTH), inner, nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(torch.relu(self.inner(self.before(x))))


def make(kind: str, is_inside: bool) -> nn.Module:
    torch.manual_seed(0)
    model = KINDS[kind]()
    return Around(model) if is_inside else model
