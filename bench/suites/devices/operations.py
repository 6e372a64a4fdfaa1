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
    """Return the outcome of each operation, and why it failed."""
    outcomes = {}
    for operation in (_split, _plan, _convert):
        try:
            outcome = "right" if operation(*make()) else "wrong"
        except Exception as error:
            outcome = failure(error)
        outcomes[operation.__name__.strip("_")] = outcome
    return outcomes


def failure(error: Exception) -> str:
    """Return the outcome of an operation that raised an error: refused, if it is an error of mucudnn."""
    kinds: dict[type[Exception], str] = {MucudnnError: "refused", ImportError: "absent"}
    kind = next((kinds[base] for base in kinds if isinstance(error, base)), "unclear")
    return f"{kind}: {type(error).__name__}: {error}"


def _split(model: nn.Module, x: Tensor) -> bool:
    expected = copy.deepcopy(model)
    first, last = split(model, stages=2, example_input=x)  # they have the model's parameters
    return _is_close(_step(lambda x: last(*first(x)), model, x), _step(expected, expected, x))


def _plan(model: Any, x: Tensor) -> bool:
    """Return whether the simulated step keeps a memory between the least and what it takes without a plan."""
    step: Any = {"example_input": x.float(), "device": "h200", "choice": "fixed"}
    free = mucudnn.torch.plan_memory(model.float().train(), memory=2**40, **step)
    plan = mucudnn.torch.plan_memory(model, memory=(free.peak + free.floor) // 2, **step)
    return plan.simulate().peak <= plan.memory


def _convert(model: nn.Module, x: Tensor) -> bool:
    converted = mucudnn.torch.convert(copy.deepcopy(model), choice="fixed")
    return _is_close(_step(converted, converted, x), _step(model, model, x))


def _step(run: Callable[[Tensor], Tensor], model: nn.Module, x: Tensor) -> list[Tensor]:
    """Return the result of a run and the gradients of the model's parameters."""
    model.zero_grad()
    y = run(x)
    (y * (y.detach().sin() + 0.1)).sum().backward()
    return [y.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


def _is_close(actual: list[Tensor], due: list[Tensor]) -> bool:
    most = max(float(tensor.abs().max()) for tensor in due)
    return all(float((a - d).abs().max()) <= RIGHT * most for a, d in zip(actual, due, strict=True))
