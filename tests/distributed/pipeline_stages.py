"""Models in three stages whose messages are unusual, and a comparison of each with the undivided model."""

from __future__ import annotations

import copy
import functools
import traceback
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import pipeline_cases
import torch
from pipeline_cases import WIDTH
from torch import Tensor, nn

from mucudnn.torch.pipeline import BidirectionalPipeline

DEPTH = 3
BFLOAT16 = torch.bfloat16


class Stage(pipeline_cases.Layer):
    """A linear layer, and a function of its result."""

    def __init__(self, function: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.function = function
        self.register_buffer("state", torch.zeros(1, WIDTH))
        self.step = self.calls = 0
        self.last = torch.zeros(1)

    def forward(self, x: Tensor, *others: Tensor) -> Any:
        y = self.inner(x.to(self.inner.weight.dtype) if not torch.is_autocast_enabled("cpu") else x)
        for other in others:
            y = y + other.to(y.dtype).sum() / len(y)
        return y if self.function is None else self.function(self, y)


class Whole(nn.Module):
    """A function without weights."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *values: Tensor) -> Any:
        return self.function(*values)


@dataclass(frozen=True)
class Model:
    """A model in stages, and the changes between its steps.

    Attributes:
        make: a function that returns the stages.
        context: the context in which a rank runs a step; a function of the step and of the rank.
        change: a function that changes a stage before a step; its arguments are step, number and stage.
        samples: the samples of each step.
        dtype: the type of the inputs and, at first, of the weights.
        has_replicas: True if schedules with two replicas can train it too.
    """

    make: Callable[[], list[nn.Module]]
    context: Callable[[int, int], AbstractContextManager[Any]] = lambda step, rank: nullcontext()
    change: Callable[[int, int, nn.Module], Any] = lambda step, number, stage: None
    samples: tuple[int, ...] = (16, 16)
    dtype: torch.dtype = torch.float64
    has_replicas: bool = True


def three(*functions: Callable[..., Any] | None) -> Callable[[], list[nn.Module]]:
    """Return a function that makes three stages with these functions of their results, or None."""
    return lambda: [Stage(function) for function in (*functions, None, None, None)[:DEPTH]]


def autocast(is_on: bool) -> torch.autocast:
    return torch.autocast("cpu", BFLOAT16, enabled=is_on)


def island(stage: Stage, y: Tensor) -> Tensor:
    """Multiply in fp32 although autocast is on, so the backward pass must be in fp32 as well."""
    with autocast(False):
        return y.float() @ stage.inner.weight


def remember(stage: Stage, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return a buffer that the next micro-batch changes in place."""
    with torch.no_grad():
        stage.state.add_(y.detach().mean(0))
    return y, stage.state


def layout_by_value(stage: Stage, y: Tensor) -> Any:
    """Return some rows, for some micro-batches without a gradient or with another tensor."""
    number = int(y.detach().abs().sum() * 1e6)
    rows = y[: 1 + number % len(y)]
    return (rows, rows.detach(), (rows, rows > 0))[number % 3]


@torch.no_grad()
def without_gradient(stage: Stage, y: Tensor) -> Tensor:
    return y * 2


def begin_in_place() -> list[nn.Module]:
    return [
        nn.Sequential(nn.LeakyReLU(0.1, inplace=True), nn.Linear(WIDTH, WIDTH)),
        nn.Sequential(nn.ReLU(inplace=True), nn.Linear(WIDTH, WIDTH)),
        nn.Sequential(nn.ELU(inplace=True), nn.Linear(WIDTH, WIDTH)),
    ]


MODELS = {
    "under autocast": Model(three(), lambda step, rank: autocast(True), dtype=torch.float32),
    "with a part that autocast leaves alone": Model(
        three(island, island), lambda step, rank: autocast(True), dtype=torch.float32
    ),
    "under autocast in one step": Model(
        three(), lambda step, rank: autocast(step == 1), samples=(16, 16, 16), dtype=torch.float32
    ),
    "under autocast on one rank": Model(
        three(), lambda step, rank: autocast(rank == 0), dtype=torch.float32, has_replicas=False
    ),
    "converted after it was built": Model(
        three(),
        change=lambda step, number, stage: stage.to(BFLOAT16),
        dtype=torch.float32,
        has_replicas=False,  # two replicas add the gradients in a different order, with other rounding errors
    ),
    "with one stage converted in between": Model(
        three(), change=lambda step, number, stage: stage.float() if (step, number) == (1, 1) else None
    ),
    "with mini-batches of several sizes": Model(three(), samples=(16, 8, 24, 16)),
    "with values that decide the layout": Model(three(layout_by_value, layout_by_value), has_replicas=False),
    "in training mode and in evaluation mode": Model(
        three(lambda stage, y: (y, y.sigmoid()) if stage.training else y),
        change=lambda step, number, stage: stage.train(step % 2 == 0),
        samples=(16, 16, 16),
    ),
    "with integers and truth values": Model(three(lambda stage, y: (y, y.argmax(1), y > 0))),
    "with outputs without gradient": Model(three(lambda stage, y: (y, y.detach()), without_gradient)),
    "with outputs that lose their gradient for once": Model(
        three(lambda stage, y: y.detach() if stage.step == 1 else y),
        change=lambda step, number, stage: setattr(stage, "step", step),
        samples=(16, 16, 16),
    ),
    "with frozen stages": Model(
        three(), change=lambda step, number, stage: stage.requires_grad_(number > 1 - step)
    ),
    "with the same tensor twice": Model(
        lambda: [
            Stage(lambda stage, y: (y, y)),
            Whole(lambda x, same: (x.relu_(), same)),
            Stage(),
        ]
    ),
    "with complex numbers": Model(
        lambda: [Stage(lambda stage, y: torch.complex(y, y * 2).conj()), Whole(lambda z: z.imag), Stage()]
    ),
    "with more tensors than a header describes": Model(
        three(lambda stage, y: tuple(y + number for number in range(200)))
    ),
    "with tensors of no dimension and of no elements": Model(three(lambda stage, y: (y, y.sum(), y[:, :0]))),
    "with inputs that are returned": Model(lambda: [Stage(), nn.Identity(), Stage()]),
    "with views": Model(
        lambda: [
            Stage(lambda stage, y: (y.t(), y[:, ::2], y.chunk(2, 1)[1])),
            Whole(lambda x, *others: (x.t(), *others)),
            Stage(),
        ]
    ),
    "with stages that begin in place": Model(begin_in_place),
    "with a stage that ends as it began in place": Model(
        lambda: [Stage(), nn.Sequential(nn.ReLU(inplace=True), nn.Identity()), Stage()]
    ),
    "with running statistics": Model(
        lambda: [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH)), Stage(), Stage()],
        has_replicas=False,
    ),
    "with a buffer that changes while it is sent": Model(three(remember), has_replicas=False),
}


def loss(output: Tensor, target: Tensor) -> Tensor:
    return (output.double().mean() - target.mean()).square() + output.double().square().mean()


def mini_batch(model: Model, step: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(step)
    x = torch.randn(model.samples[step], WIDTH, generator=generator, dtype=torch.float64)
    return x.to(model.dtype), torch.randn(model.samples[step], 3, generator=generator, dtype=torch.float64)


def accumulate(model: Model, stages: list[nn.Module], step: int, micro_batches: int) -> tuple[float, Tensor]:
    """Run a step of the undivided model. Return the loss, and the inputs as the step left them."""
    inputs, targets = mini_batch(model, step)
    total = 0.0
    for x, t in zip(inputs.chunk(micro_batches), targets.chunk(micro_batches), strict=True):
        value: Any = (x,)
        for number, stage in enumerate(stages):
            with model.context(step, number):
                value = stage(*value)
            value = value if isinstance(value, tuple) else (value,)
        error = loss(*value, t) / micro_batches
        error.backward()
        total += float(error.detach())
    return total, inputs


def compare(name: str, schedule: str) -> None:
    """Train a model in stages and undivided. Raises AssertionError if they differ."""
    model, rank = MODELS[name], torch.distributed.get_rank()
    close = functools.partial(
        torch.testing.assert_close,
        **({"rtol": 1e-12, "atol": 1e-14} if model.dtype is torch.float64 else {"rtol": 2e-6, "atol": 1e-7}),
    )
    torch.manual_seed(0)
    stages = [stage.to(model.dtype) for stage in model.make()]
    undivided = copy.deepcopy(stages)
    mesh = pipeline_cases.make_mesh(DEPTH)
    pipeline = BidirectionalPipeline(stages, mesh, loss, schedule, 2, timeout=60)
    for step in range(len(model.samples)):
        held = [(number, stage) for (number, _), stage in pipeline.modules.items()]
        for number, stage in (*enumerate(undivided), *held):
            model.change(step, number, stage)
            stage.zero_grad()
        expected, changed = accumulate(model, undivided, step, 4)
        inputs, targets = mini_batch(model, step)
        with model.context(step, rank):
            close(float(pipeline.step(inputs, targets)), expected)
        for number, stage in held:
            for parameter, wanted in zip(stage.parameters(), undivided[number].parameters(), strict=True):
                if parameter.requires_grad:
                    nothing = torch.zeros_like(
                        wanted
                    )  # parameters on which no result depends may have a gradient or none
                    close(*(nothing if p.grad is None else p.grad for p in (parameter, wanted)))
            for buffer, wanted in zip(stage.buffers(), undivided[number].buffers(), strict=True):
                close(buffer, wanted)
        if len(held) == 1 and rank == 0:  # the only rank that has the first stage
            torch.testing.assert_close(inputs, changed, rtol=0, atol=0)


def compare_all(schedule: str) -> dict[str, str]:
    """Return the errors of all models' comparisons, by the model's name."""
    errors = {}
    for name, model in MODELS.items():
        if model.has_replicas or schedule.startswith("1f1b"):
            try:
                compare(name, schedule)
            except Exception:  # the other models are still compared
                errors[name] = traceback.format_exc()
    return errors
