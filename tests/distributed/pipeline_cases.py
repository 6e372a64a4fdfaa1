"""Functions that run on every rank of a pipeline, for `test_pipeline`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

import mucudnn.torch as mt
from mucudnn.errors import MucudnnError
from mucudnn.torch.pipeline import BidirectionalPipeline


class Join(nn.Module):
    """A layer that takes two tensors and returns two."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 6)

    def forward(self, x: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(self.inner(x)) + skip, skip * 2


class Fork(nn.Module):
    """A layer that returns two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(5, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.inner(x)
        return torch.tanh(y), y


class Meet(nn.Module):
    """A layer that takes two tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(6, 3)

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.inner(x * torch.sigmoid(skip))


def make_stages(depth: int) -> list[nn.Module]:
    torch.manual_seed(depth)
    return [Fork(), *(Join() for _ in range(depth - 2)), Meet()]


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.mse_loss(output, target)


def mini_batches(count: int, samples: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    return [
        (
            torch.randn(samples, 5, generator=generator, dtype=torch.float64),
            torch.randn(samples, 3, generator=generator, dtype=torch.float64),
        )
        for _ in range(count)
    ]


def make_mesh(depth: int, data: int = 1) -> DeviceMesh:
    """Return the mesh of all ranks after all are connected, because a rank may leave early with an error."""
    mesh = init_device_mesh("cpu", (data, depth), mesh_dim_names=("data", "pipe"))
    torch.distributed.barrier()
    return mesh


def train_undivided(depth: int, data: int, samples: int, steps: int) -> tuple[list[float], list[Tensor]]:
    """Return the losses, and the gradients of the last step, of the undivided model."""
    stages = [stage.double() for stage in make_stages(depth)]
    parameters = [p for stage in stages for p in stage.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    losses = []
    for x, y in mini_batches(steps, samples * data):
        optimizer.zero_grad()
        value: Any = (x,)
        for stage in stages:
            value = stage(*value) if isinstance(value, tuple) else stage(value)
        error = loss(value, y)
        error.backward()
        losses.append(float(error.detach()))
        optimizer.step()
    return losses, [p.grad for p in parameters if p.grad is not None]


def train(
    schedule: str, depth: int, data: int, samples: int, steps: int, replications: int
) -> tuple[list[float], dict[int, list[Tensor]], int]:
    """Return the losses, the gradients of the last step by stage, and the live activations."""
    mesh = make_mesh(depth, data)
    stages = [stage.double() for stage in make_stages(depth)]
    if torch.distributed.get_rank() > 0:
        with torch.no_grad():
            for stage in stages:  # the copies must become equal before the first step
                for parameter in stage.parameters():
                    parameter.add_(torch.distributed.get_rank())
        own = mesh.get_local_rank("pipe")
        if mesh.get_local_rank("data") == 0:
            for p, q in zip(stages[own].parameters(), make_stages(depth)[own].parameters(), strict=True):
                p.data.copy_(q.data.double())
    pipeline = BidirectionalPipeline(stages, mesh, loss, schedule, replications)
    optimizer = torch.optim.SGD(pipeline.parameters(), lr=0.1)
    losses = []
    for x, y in mini_batches(steps, samples * data):
        mine = slice(mesh.get_local_rank("data") * samples, (mesh.get_local_rank("data") + 1) * samples)
        optimizer.zero_grad()
        losses.append(float(pipeline.step(x[mine], y[mine])))
        optimizer.step()
    gradients = {
        stage: [p.grad.clone() for p in module.parameters() if p.grad is not None]
        for (stage, _), module in pipeline.modules.items()
    }
    return losses, gradients, pipeline.live


def make_convolutions(depth: int) -> list[nn.Module]:
    """Return stages whose results do not depend on the mini-batch."""
    torch.manual_seed(depth)
    stages = (nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.Tanh()) for _ in range(depth))
    return [mt.convert(stage, batch_invariant=True) for stage in stages]


def results_of_convolutions(schedule: str, depth: int, x: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return the results that reach this rank, each with the numbers of its samples."""
    seen: list[tuple[Tensor, Tensor]] = []

    def loss(output: Tensor, numbers: Tensor) -> Tensor:
        seen.append((numbers, output.detach().clone()))
        return output.square().mean()

    mesh = make_mesh(depth)
    BidirectionalPipeline(make_convolutions(depth), mesh, loss, schedule).step(x, torch.arange(len(x)))
    return seen


def error_of(depth: int, change: str) -> str:
    """Return the message of the error that a wrong argument raises on this rank."""
    mesh = make_mesh(depth)
    stages: list[Any] = [stage.double() for stage in make_stages(depth)]
    (x, y), schedule, replications = mini_batches(1, 8)[0], "gems", 1
    try:
        if change == "stages":
            stages.append(nn.Linear(3, 3))
        elif change == "shapes":
            stages[1] = nn.Linear(9, 9).double()
        elif change == "batch":
            x, y = x[:0], y[:0]
        elif change == "schedule":
            schedule = "zigzag"
        elif change == "replications":
            replications = 0
        elif change == "meta":
            stages = [stage.to("meta") for stage in stages]
        elif change == "targets":
            y = y[:6]
        elif change == "memory":
            BidirectionalPipeline(stages, mesh, loss, "auto", example=x, memory="100")
        elif change == "example":
            BidirectionalPipeline(stages, mesh, loss, "auto")
        BidirectionalPipeline(stages, mesh, loss, schedule, replications).step(x, y)
    except (MucudnnError, TypeError) as error:
        torch.distributed.barrier()  # the other rank may still be making its process groups
        return "\n".join((f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])))
    return "no error"


def fail_to_start(depth: int) -> str:
    """Let each rank start its first message after its neighbour ended. Return the error of this rank."""
    mesh = make_mesh(depth)
    pipeline = BidirectionalPipeline([s.double() for s in make_stages(depth)], mesh, loss, "gpipe", 1)

    def refuse(*_: Any) -> None:
        raise RuntimeError("Connection closed by peer")

    torch.distributed.isend = torch.distributed.irecv = refuse
    (x, y) = mini_batches(1, 8)[0]
    try:
        pipeline.step(x, y)
    except MucudnnError as error:
        return str(error)
    return "no error"


def built(depth: int) -> list[int]:
    """Return the stages that functions built on this rank, without those on the meta device."""
    mesh = make_mesh(depth)
    calls: list[int] = []

    def builder(number: int) -> Any:
        def build() -> nn.Module:
            stage = [Fork, *([Join] * (depth - 2)), Meet][number]()
            if not next(stage.parameters()).is_meta:
                calls.append(number)
            return stage.double()

        return build

    (x, y) = mini_batches(1, 8)[0]
    BidirectionalPipeline([builder(i) for i in range(depth)], mesh, loss, "gems").step(x, y)
    return calls


def choose(depth: int) -> tuple[str, str]:
    """Return the schedules that "auto" takes with unlimited memory and with the least sufficient memory."""
    mesh = make_mesh(depth)
    (x, y) = mini_batches(1, 64)[0]
    names = []
    for memory in (None, "least"):
        stages = [stage.double() for stage in make_stages(depth)]
        if memory == "least":
            try:
                BidirectionalPipeline(stages, mesh, loss, "auto", 2, example=x, memory=1)
            except MucudnnError as error:
                memory = str(error).rpartition("the least is ")[2].split()[0]
        pipeline = BidirectionalPipeline(stages, mesh, loss, "auto", 2, example=x, memory=memory)
        assert pipeline.timeline is not None
        assert pipeline.timeline.schedule == pipeline.schedule
        pipeline.step(x, y)
        names.append(pipeline.schedule.name)
    return names[0], names[1]


def statistics(depth: int, schedule: str) -> dict[int, Tensor]:
    """Return the running mean of each stage's BatchNorm that this rank holds after a step."""
    mesh = make_mesh(depth)
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5)).double() for _ in range(depth)]
    (x, _) = mini_batches(1, 8)[0]
    pipeline = BidirectionalPipeline(stages, mesh, loss, schedule)
    pipeline.step(x, x)
    return {
        stage: module[1].running_mean  # type: ignore[index, union-attr, misc]  # a Sequential with a BatchNorm
        for (stage, _), module in pipeline.modules.items()
    }
