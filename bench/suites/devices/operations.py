"""Models of the survey, split, planned and converted: what works, and is right then."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

import mucudnn.torch
from mucudnn.errors import MucudnnError
from mucudnn.torch.pipeline import split

RIGHT = 1e-9


def try_operations(make: Callable[[], tuple[Any, Tensor]]) -> dict[str, str]:
    """Return the outcome of each operation, and why it is refused or unclear."""
    outcomes = {}
    for operation in (_split, _plan, _convert):
        try:
            outcome = "right" if operation(*make()) else "wrong"
        except MucudnnError as error:
            outcome = f"refused: {error}"
        except Exception as error:
            outcome = f"unclear: {type(error).__name__}: {error}"
        outcomes[operation.__name__.strip("_")] = outcome
    return outcomes


def _split(model: nn.Module, x: Tensor) -> bool:
    split(model, stages=2, example_input=x)  # it compares the stages with the model itself
    return True


def _plan(model: Any, x: Tensor) -> bool:
    """Return whether the simulated step keeps a memory between the least and what it takes without a plan."""
    model.tensors = {name: tensor.float() for name, tensor in model.tensors.items()}
    step: Any = {"example_input": x.float(), "device": "h200", "choice": "fixed"}
    free = mucudnn.torch.plan_memory(model.float().train(), memory=2**40, **step)
    plan = mucudnn.torch.plan_memory(model, memory=(free.peak + free.floor) // 2, **step)
    return plan.simulate().peak <= plan.memory


def _convert(model: nn.Module, x: Tensor) -> bool:
    converted = mucudnn.torch.convert(copy.deepcopy(model), choice="fixed")
    steps = []
    for each in (converted, model):
        y = each(x)
        (y * (y.detach().sin() + 0.1)).sum().backward()
        steps.append([y.detach(), *(p.grad for p in each.parameters() if p.grad is not None)])
    most = max(float(due.abs().max()) for due in steps[1])
    return all(float((a - due).abs().max()) <= RIGHT * most for a, due in zip(*steps, strict=True))
