"""Pipelines of three ranks in which something fails, for `test_pipeline_messages`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pipeline_cases
import torch
from pipeline_cases import WIDTH
from pipeline_stages import Stage, loss, three
from torch import Tensor

from mucudnn.errors import MucudnnError
from mucudnn.torch.pipeline import BidirectionalPipeline


def text_of(error: Exception) -> str:
    return "\n".join((f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])))


def in_one_step(function: Callable[[Tensor], Any], step: int = 1) -> Callable[[Stage, Tensor], Any]:
    """Return a function that changes a stage's second result in a step, and no other result."""

    def change(stage: Stage, y: Tensor) -> Any:
        stage.calls += 1
        return function(y) if (stage.step, stage.calls) == (step, 2) else y

    return change


def divide_by_zero(y: Tensor) -> Any:
    raise ZeroDivisionError("the stage divides by zero")


def fail_backward(y: Tensor) -> Tensor:
    def refuse(gradient: Tensor) -> None:
        raise ZeroDivisionError("the gradient divides by zero")

    y.register_hook(refuse)
    return y


def change_later(stage: Stage, y: Tensor) -> Tensor:
    """Change the first micro-batch's output in place while the second is computed, in the second step."""
    stage.calls += 1
    if (stage.step, stage.calls) == (1, 2):
        stage.last.add_(1)
    stage.last = y.detach()
    return y


FAILURES: dict[str, Callable[[Stage, Tensor], Any]] = {
    "sparse": in_one_step(lambda y: y.to_sparse()),
    "meta": in_one_step(lambda y: y.to("meta")),
    "text": in_one_step(lambda y: "y"),
    "nothing": in_one_step(lambda y: ()),
    "forward": in_one_step(divide_by_zero),
    "first forward": in_one_step(divide_by_zero, step=0),
    "backward": in_one_step(fail_backward),
    "changed": change_later,
}


def fail(kind: str, schedule: str) -> tuple[list[str], list[float], bool]:
    """Run three steps, in one of which the second stage fails.

    Returns:
        the errors, the losses of the other steps, and whether the failed step left the gradients alone.
    """
    torch.manual_seed(0)
    stages = [stage.double() for stage in three(None, FAILURES[kind])()]
    pipeline = BidirectionalPipeline(stages, pipeline_cases.make_mesh(3), loss, schedule, 2, timeout=60)
    errors, losses, are_kept = [], [], True
    x = torch.randn(16, WIDTH, dtype=torch.float64)
    for step in range(3):
        for stage in pipeline.modules.values():
            stage.step, stage.calls = step, 0  # type: ignore[assignment]  # attributes of Stage
        gradients = [None if p.grad is None else p.grad.clone() for p in pipeline.parameters()]
        try:
            losses.append(float(pipeline.step(x, x)))
        except Exception as error:
            errors.append(text_of(error))
            for before, parameter in zip(gradients, pipeline.parameters(), strict=True):
                after = parameter.grad
                are_kept &= (after is None) if before is None else torch.equal(before, after)
    return errors, losses, are_kept


def fail_all(schedule: str) -> dict[str, tuple[list[str], list[float], bool]]:
    """Return the results of all failures."""
    return {kind: fail(kind, schedule) for kind in FAILURES}


def give_another_batch() -> list[str]:
    """Let one rank's mini-batch not divide. Return the errors and the loss of the next step."""
    stages = [stage.double() for stage in three()()]
    mesh = pipeline_cases.make_mesh(3)
    pipeline = BidirectionalPipeline(stages, mesh, loss, "1f1b", 2, timeout=60)
    x = torch.randn(16, WIDTH, dtype=torch.float64)
    outcomes = []
    for samples in (15 if torch.distributed.get_rank() == 1 else 16, 16):
        try:
            outcomes.append(f"{pipeline.step(x[:samples], x[:samples]):.1f}")
        except MucudnnError as error:
            outcomes.append(text_of(error))
    return outcomes


def stay_away() -> str:
    """Let one rank run no step. Return the error of the others."""
    mesh, outcome = pipeline_cases.make_mesh(3), "stayed away"
    pipeline = BidirectionalPipeline(three()(), mesh, loss, "1f1b", timeout=1)
    if torch.distributed.get_rank() < 2:
        try:
            pipeline.step(torch.randn(4, WIDTH), torch.randn(4, WIDTH))
        except MucudnnError as error:
            outcome = text_of(error)
    torch.distributed.barrier()
    return outcome
