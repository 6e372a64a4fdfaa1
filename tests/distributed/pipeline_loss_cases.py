"""Losses of a pipeline and of the undivided model, on every rank, for `test_pipeline_losses`."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import pipeline_cases as cases
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

from mucudnn.errors import UsageError
from mucudnn.torch.pipeline import BidirectionalPipeline

SAMPLES, CLASSES = 8, 5


@dataclass
class Difference:
    """The distance of a pipeline's step from the undivided model's."""

    loss: float
    gradients: float


def stages(depth: int) -> list[nn.Module]:
    torch.manual_seed(depth)
    return [nn.Sequential(nn.Linear(CLASSES, CLASSES), nn.Tanh()).double() for _ in range(depth)]


def targets(kind: str) -> Any:
    """Return targets of eight samples; with two micro-batches or more, some ignore everything."""
    classes = torch.tensor([-100, -100, 1, 2, -100, 3, 4, 0])
    random = torch.Generator().manual_seed(3)
    real = torch.rand(SAMPLES, CLASSES, generator=random, dtype=torch.float64)
    return {
        "classes": classes,
        "nothing": torch.full((SAMPLES,), -100),
        "all": classes.clamp(min=0),
        "narrow": classes.clamp(min=0).byte(),
        "probabilities": real.softmax(1),
        "real": real,
        "masked": (real, (torch.arange(SAMPLES * CLASSES) % 7 < 3).view(SAMPLES, CLASSES)),
        "lengths": (
            torch.tensor([[1, 2], [3, 4]] * 4),
            torch.full((SAMPLES,), 5),
            torch.tensor([1, 2, 2, 1, 2, 1, 1, 2]),
        ),
    }[kind]


WEIGHT = torch.tensor([0.5, 2.0, 0.0, 1.5, 3.0], dtype=torch.float64)


def masked_sum(y: Tensor, t: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return ((y - t[0]).square() * t[1]).sum(), t[1].sum()


def masked_mean(y: Tensor, t: tuple[Tensor, Tensor]) -> Tensor:
    return ((y - t[0]).square() * t[1]).sum() / t[1].sum()


def with_extra(y: Tensor, t: Tensor) -> Tensor:
    return functional.cross_entropy(y, t) + y.square().mean()


def scaled_sum(y: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    return 1024 * functional.cross_entropy(y, t, reduction="sum"), (t != -100).sum()


def weighted_sum(y: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    return functional.cross_entropy(y, t, WEIGHT, reduction="sum"), WEIGHT[t[t != -100]].sum()


# The losses by name: the pipeline's loss, the kind of targets, and the undivided model's loss if it differs.
LOSSES: dict[str, tuple[Any, str] | tuple[Any, str, Any]] = {
    "CrossEntropyLoss": (nn.CrossEntropyLoss(), "all"),
    "CrossEntropyLoss, smoothing": (nn.CrossEntropyLoss(label_smoothing=0.3), "narrow"),
    "CrossEntropyLoss, probabilities": (nn.CrossEntropyLoss(WEIGHT, label_smoothing=0.1), "probabilities"),
    "nll_loss, partial": (partial(functional.nll_loss, ignore_index=7), "all"),
    "compiled": (torch.compile(nn.CrossEntropyLoss(), backend="eager"), "all", nn.CrossEntropyLoss()),
    "pair": (masked_sum, "masked", masked_mean),
    "pair, weights of classes": (weighted_sum, "classes", nn.CrossEntropyLoss(WEIGHT)),
    "pair, scaled": (scaled_sum, "classes", lambda y, t: 1024 * functional.cross_entropy(y, t)),
    "pair, plain numbers": (
        lambda y, t: (functional.mse_loss(y, t, reduction="sum"), t.numel()),
        "real",
        functional.mse_loss,
    ),
    "pair or mean": (
        lambda y, t: functional.mse_loss(y, t) if t[0, 0] > 0.5 else ((y - t).square().mean(1).sum(), len(t)),
        "real",
        functional.mse_loss,
    ),
    "MSELoss": (nn.MSELoss(), "real"),
    "a sum over the samples": (lambda y, t: functional.mse_loss(y, t, reduction="sum") / len(t), "real"),
    "BCEWithLogitsLoss": (nn.BCEWithLogitsLoss(WEIGHT, pos_weight=WEIGHT), "real"),
    "KLDivLoss, batchmean": (nn.KLDivLoss(reduction="batchmean"), "probabilities"),
    "MultiMarginLoss": (nn.MultiMarginLoss(weight=WEIGHT), "all"),
    "CTCLoss": (
        lambda y, t: functional.ctc_loss(y.expand(5, *y.shape).log_softmax(-1), *t),
        "lengths",
    ),
}


def compare(schedule: str, depth: int, data: int, replications: int) -> dict[str, Difference]:
    """Return the differences for all losses. With data parallelism the pipelines' losses are averaged."""
    mesh = cases.make_mesh(depth, data)
    return {
        name: difference(mesh, schedule, replications, row[0], row[-1] if len(row) == 3 else row[0], row[1])
        for name, row in LOSSES.items()
    }


def difference(
    mesh: DeviceMesh,
    schedule: str,
    replications: int,
    loss: Callable[[Any, Any], Any],
    undivided: Callable[[Any, Any], Tensor],
    kind: str,
) -> Difference:
    data, depth = mesh.shape
    whole = stages(depth)
    values = []
    for number in range(data):
        x, t = sample(number, kind)
        values.append(undivided(nn.Sequential(*whole)(x), t))
    expected = torch.stack(values).mean()
    expected.backward()
    x, t = sample(mesh.get_local_rank("data"), kind)
    pipeline = BidirectionalPipeline(stages(depth), mesh, loss, schedule, replications)
    value = pipeline.step(x, t)
    distance = 0.0
    for (stage, _), module in pipeline.modules.items():
        for p, q in zip(module.parameters(), whole[stage].parameters(), strict=True):
            distance = max(distance, relative(p.grad, q.grad))
    return Difference(relative(value, expected), distance)


def sample(pipeline: int, kind: str) -> tuple[Tensor, Any]:
    """Return a pipeline's mini-batch. Two pipelines have the same targets in a different order."""
    x = torch.randn(SAMPLES, CLASSES, generator=torch.Generator().manual_seed(pipeline), dtype=torch.float64)
    t = targets(kind)
    turned = [v.roll(pipeline, 0) for v in (t if isinstance(t, tuple) else (t,))]
    return x, tuple(turned) if isinstance(t, tuple) else turned[0]


def relative(value: Tensor | None, expected: Tensor | None) -> float:
    """Return the largest difference over the largest value, or 0 if the same elements are not a number."""
    assert value is not None
    assert expected is not None
    if not bool(torch.isfinite(expected).all()):
        torch.testing.assert_close(value.to(expected.dtype), expected.detach(), equal_nan=True)
        return 0.0
    return float((value - expected).abs().max() / expected.abs().max().clamp(min=1e-300))


def nothing_counts() -> Difference:
    """Return the difference if all targets of the mini-batch are ignored, so the mean is not a number."""
    return difference(cases.make_mesh(2), "1f1b", 1, scaled_sum, functional.cross_entropy, "nothing")


class Owning(nn.Module):
    """A loss function with a parameter that could be trained."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones((), dtype=torch.float64))

    def forward(self, y: Tensor, t: Tensor) -> Tensor:
        return self.scale * functional.mse_loss(y, t)


def refusals() -> dict[str, str]:
    """Return the errors, or the warning, for losses that a pipeline cannot use."""
    mesh = cases.make_mesh(1)
    cross_entropy = functional.cross_entropy
    wrong: dict[str, tuple[Any, str]] = {
        "float": (lambda y, t: float(functional.mse_loss(y, t)), "real"),
        "three": (lambda y, t: (functional.mse_loss(y, t),) * 3, "real"),
        "vector": (lambda y, t: ((y - t).square().sum(1), 8), "real"),
        "weights": (lambda y, t: ((y - t).square().sum(), torch.ones(4)), "real"),
        "swapped": (lambda y, t: (t.numel(), (y - t).square().sum()), "real"),
        "learned": (lambda y, t: ((y - t).square().sum(), y.sum()), "real"),
        "ignored": (nn.CrossEntropyLoss(), "classes"),
        "ignored in a part": (lambda y, t: cross_entropy(y, t) + y.square().mean(), "classes"),
        "ignored class": (nn.NLLLoss(ignore_index=0), "all"),
        "weighted": (torch.compile(nn.CrossEntropyLoss(WEIGHT), backend="eager"), "all"),
        "sum": (nn.MSELoss(reduction="sum"), "real"),
        "sum in a function": (lambda y, t: cross_entropy(y, t, reduction="sum"), "classes"),
    }
    messages = {}
    for name, (loss, kind) in wrong.items():
        try:
            messages[name] = str(BidirectionalPipeline(stages(1), mesh, loss, "1f1b").step(*sample(0, kind)))
        except UsageError as error:
            messages[name] = str(error)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        BidirectionalPipeline(stages(1), mesh, copy.deepcopy(Owning()), "1f1b")
    messages["owning"] = str(caught[0].message)
    return messages
