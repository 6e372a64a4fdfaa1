"""Training of pipelines, whose stages may share weights, with norms and buffers, for `test_pipeline_ties`."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pipeline_cases as cases
import torch
from pipeline_cases import WIDTH, mse_loss
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional

from mucudnn.errors import UsageError
from mucudnn.torch.pipeline import BidirectionalPipeline

SAMPLES, STEPS = 8, 3


class Stage(nn.Module):
    """A layer with its own weight and optionally a shared weight, which it uses twice."""

    def __init__(self, shared: nn.Linear | None = None) -> None:
        super().__init__()
        self.own = nn.Linear(WIDTH, WIDTH).double()
        self.unused = nn.Parameter(torch.ones(3, dtype=torch.float64))
        self.first = self.second = shared

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.own(x))
        return x if self.first is None else self.second(torch.tanh(self.first(x)))


def shared_by(places: tuple[int, ...], depth: int) -> list[nn.Module]:
    """Return stages that share the weight and the bias of a layer in some places."""
    torch.manual_seed(depth)
    shared = nn.Linear(WIDTH, WIDTH).double()
    return [Stage(shared if stage in places else None) for stage in range(depth)]


def ends(depth: int) -> list[nn.Module]:
    return shared_by((0, depth - 1), depth)


def everywhere(depth: int) -> list[nn.Module]:
    return shared_by(tuple(range(depth)), depth)


def neighbours(depth: int) -> list[nn.Module]:
    return shared_by((depth - 2, depth - 1), depth)


def one_module(depth: int) -> list[nn.Module]:
    return [shared_by((0,), 1)[0]] * depth


def frozen(depth: int) -> list[nn.Module]:
    stages = ends(depth)
    for parameter in stages[0].first.parameters():  # type: ignore[union-attr]  # a Stage
        parameter.requires_grad_(False)
    return stages


MODELS: dict[str, Callable[[int], list[nn.Module]]] = {
    "ends": ends,
    "everywhere": everywhere,
    "neighbours": neighbours,
    "one module": one_module,
    "frozen": frozen,
}


def differing(mesh: DeviceMesh) -> list[nn.Module]:
    """Return stages without shared weights, of which each has its right values on its first owner alone."""
    stages = cases.make_stages(mesh.size(1))
    own = stages[mesh.get_local_rank("pipe")] if mesh.get_local_rank("data") == 0 else None
    for stage in stages:
        for parameter in stage.parameters():
            parameter.requires_grad_(False).add_(stage is not own).requires_grad_()
    return stages


def train(
    mesh: DeviceMesh, stages: list[Any], whole: list[nn.Module], schedule: str, replications: int
) -> tuple[float, list[list[float]]]:
    """Train a pipeline and the undivided model, with momentum, weight decay and a limit for the norm.

    Every update has the gradients of two steps. Return the largest relative difference of a weight, and
    this rank's copies of the shared weight.
    """
    data = mesh.size(0)
    pipeline = BidirectionalPipeline(stages, mesh, mse_loss, schedule, replications)
    parameters = list(dict.fromkeys(p for stage in whole for p in stage.parameters()))
    optimizers = [
        torch.optim.SGD(list(p), lr=0.3, momentum=0.5, weight_decay=0.1)
        for p in (pipeline.parameters(), parameters)
    ]
    mine = slice(mesh.get_local_rank("data") * SAMPLES, (mesh.get_local_rank("data") + 1) * SAMPLES)
    for number, (x, y) in enumerate(cases.mini_batches(2 * STEPS, SAMPLES * data)):
        value = pipeline.step(x[mine], y[mine])
        expected = mse_loss(cases.run(whole, x), y)
        expected.backward()
        torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=0)
        if number % 2:
            norm = pipeline.clip_grad_norm_(0.05)
            torch.testing.assert_close(norm, nn.utils.clip_grad_norm_(parameters, 0.05), rtol=1e-12, atol=0)
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad(set_to_none=number == 1)
    assert pipeline.live == 1 or pipeline.schedule.name not in ("gems", "layers")
    worst = 0.0
    for (stage, _), module in pipeline.modules.items():
        for p, q in zip(module.parameters(), whole[stage].parameters(), strict=True):
            worst = max(worst, float((p - q).abs().max() / q.abs().max()))
    return worst, shared_weights(pipeline)


def shared_weights(pipeline: BidirectionalPipeline) -> list[list[float]]:
    return [
        module.first.weight.flatten().tolist()  # type: ignore[union-attr]  # a Stage with a shared layer
        for module in pipeline.modules.values()
        if getattr(module, "first", None) is not None
    ]


def train_all(schedule: str, depth: int, data: int, replications: int) -> dict[str, Any]:
    """Return the result of `train` for each model."""
    mesh = cases.make_mesh(depth, data)
    results = {}
    for name, make in MODELS.items():
        stages = make(depth)
        results[name] = train(mesh, stages, copy.deepcopy(stages), schedule, replications)
    results["not shared"] = train(mesh, differing(mesh), cases.make_stages(depth), schedule, replications)
    return results


def train_in_schedules(schedules: list[str], depth: int) -> dict[str, Any]:
    """Return, for each schedule, the result of `train` with a weight that the first and last stage share."""
    mesh = cases.make_mesh(depth)
    return {name: train(mesh, list(ends(depth)), ends(depth), name, 2) for name in schedules}


def start(depth: int) -> list[list[float]]:
    """Return this rank's copies of a shared weight, which is initialised differently on each rank."""
    mesh = cases.make_mesh(depth)
    stages = neighbours(depth)
    nn.init.constant_(stages[-1].first.weight, torch.distributed.get_rank())  # type: ignore[union-attr, arg-type]
    return shared_weights(BidirectionalPipeline(stages, mesh, mse_loss, "gems"))


def on_meta(same_module: bool) -> str:
    """Return the error of a model with shared weights on meta, of which each rank makes its stage real."""
    mesh = cases.make_mesh(3)
    with torch.device("meta"):
        stages = one_module(3) if same_module else everywhere(3)
    own = torch.distributed.get_rank()
    stages[own] = ends(3)[own]
    try:
        pipeline = BidirectionalPipeline(stages, mesh, mse_loss, "1f1b")
    except UsageError as error:
        return str(error)
    return f"{len(list(pipeline.parameters()))} parameters"


def norms(depth: int, schedule: str) -> dict[str, tuple[float, float]]:
    """Return the norms of a pipeline and of the undivided model with shared weights, by order."""
    mesh = cases.make_mesh(depth)
    norms = {}
    (x, y), whole = cases.mini_batches(1, SAMPLES)[0], ends(depth)
    mse_loss(cases.run(whole, x), y).backward()
    parameters = list(dict.fromkeys(p for stage in whole for p in stage.parameters()))
    pipeline = BidirectionalPipeline(ends(depth), mesh, mse_loss, schedule)
    assert float(pipeline.clip_grad_norm_(1.0)) == 0.0  # before the first step there are no gradients
    pipeline.step(x, y)
    for order in (2.0, 1, 0.5, 3.0, 0.0, -1.0, float("inf"), "inf"):
        for limit in (1e9, 0.01):
            norm = pipeline.clip_grad_norm_(limit, order)
            wanted = nn.utils.clip_grad_norm_(parameters, limit, order)
            assert norm.dtype == wanted.dtype
            norms[f"{order} {limit}"] = float(norm), float(wanted)
    for parameter in pipeline.parameters():
        if parameter.grad is not None:
            parameter.grad.fill_(float("nan"))
    try:
        pipeline.clip_grad_norm_(1.0, error_if_nonfinite=True)
    except RuntimeError as error:
        norms[str(error)] = 0.0, 0.0
    return norms


class Sometimes(nn.Module):
    """A stage that uses a layer only for samples above a limit and counts them. It has a mask, too."""

    def __init__(self, limit: float) -> None:
        super().__init__()
        self.layer, self.limit = nn.Linear(WIDTH, WIDTH).double(), limit
        self.never = nn.Linear(WIDTH, WIDTH).double()
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mask", torch.full((2,), torch.finfo(torch.float32).min))

    def forward(self, x: Tensor) -> Tensor:
        above = x.detach().mean() > self.limit
        self.count += above.int()
        return self.layer(x) if x.is_meta or bool(above) else x


def partial_use(depth: int, schedule: str, data: int) -> dict[int, tuple[bool, float, int, bool]]:
    """Train stages that use their layer for some inputs only.

    Return for each stage of this rank: whether parameters that no input uses have no gradient, the largest
    error of a gradient, the value of an integer buffer, and whether a buffer of large numbers stayed finite.
    """
    mesh = cases.make_mesh(depth, data)
    torch.manual_seed(0)
    stages: list[nn.Module] = [Sometimes(0.0), *(Sometimes(-9.0) for _ in range(depth - 1))]
    whole = copy.deepcopy(stages)
    x = torch.cat([torch.full((4, WIDTH), value, dtype=torch.float64) for value in (1.0, -1.0)])
    for part in x.split(4):
        (mse_loss(cases.run(whole, part), part * 2) / 2).backward()
    pipeline = BidirectionalPipeline(stages, mesh, mse_loss, schedule)
    pipeline.step(x, x * 2)
    return {
        stage: (
            all(p.grad is None for p in module.never.parameters()),  # type: ignore[union-attr]
            float((module.layer.weight.grad - whole[stage].layer.weight.grad).abs().max()),  # type: ignore[union-attr, operator]
            int(module.count),  # type: ignore[arg-type]
            bool(module.mask.isfinite().all()),  # type: ignore[operator, union-attr]
        )
        for (stage, _), module in pipeline.modules.items()
    }


def sparse(schedule: str) -> float:
    """Return the error of a gradient that is sparse in one stage and dense in another."""
    mesh = cases.make_mesh(2)
    torch.manual_seed(0)
    embedding = nn.Embedding(11, WIDTH, sparse=True, dtype=torch.float64)
    head = nn.Linear(WIDTH, 11, bias=False).double()
    head.weight = embedding.weight
    stages = [embedding, head]
    whole = copy.deepcopy(stages)
    dense = whole[0].weight.detach().clone().requires_grad_()
    x = torch.tensor([1, 3, 3, 10, 0, 5, 5, 5])
    loss = functional.cross_entropy(functional.linear(functional.embedding(x, dense), dense), x.flip(0))
    loss.backward()
    pipeline = BidirectionalPipeline(stages, mesh, nn.CrossEntropyLoss(), schedule)
    pipeline.step(x, x.flip(0))
    norm = pipeline.clip_grad_norm_(1e9)
    assert dense.grad is not None
    torch.testing.assert_close(norm, dense.grad.norm(), rtol=1e-12, atol=0)
    (gradient,) = [p.grad for p in pipeline.parameters()]
    assert gradient is not None
    return float((gradient.to_dense() - dense.grad).abs().max())
