"""Functions that run on every rank of a pipeline, for `test_pipeline`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from mucudnn.errors import MucudnnError
from mucudnn.torch.pipeline import BidirectionalPipeline, Split, split

WIDTH = 6
mse_loss = nn.functional.mse_loss


class Layer(nn.Module):
    """A linear layer, of which each subclass takes and returns other numbers of tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)


class Fork(Layer):
    """A layer that returns two tensors."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.inner(x)
        return torch.tanh(y), y


class Join(Layer):
    """A layer that takes two tensors and returns two."""

    def forward(self, x: Tensor, skip: Tensor) -> tuple[Tensor, Tensor]:
        return torch.tanh(self.inner(x)) + skip, skip * 2


class Meet(Layer):
    """A layer that takes two tensors."""

    def forward(self, x: Tensor, skip: Tensor) -> Tensor:
        return self.inner(x * torch.sigmoid(skip))


def make_stages(depth: int) -> list[nn.Module]:
    torch.manual_seed(depth)
    return [stage.double() for stage in (Fork(), *(Join() for _ in range(depth - 2)), Meet())]


def cut_by_split(depth: int) -> Split:
    layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(2 * depth))).double()
    return split(layers, stages=depth, example_input=torch.zeros(16, WIDTH, dtype=torch.float64))


def run(stages: Iterable[nn.Module], value: Any) -> Any:
    """Run stages in order. A tuple or dict that one returns holds the arguments of the next."""
    for stage in stages:
        if isinstance(value, dict):
            value = stage(**value)
        else:
            value = stage(*value) if isinstance(value, tuple) else stage(value)
    return value


def mini_batches(count: int, samples: int) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(7)
    values = torch.randn(count, 2, samples, WIDTH, generator=generator, dtype=torch.float64)
    return [(x, y) for x, y in values]


def make_mesh(depth: int, data: int = 1) -> DeviceMesh:
    """Return the mesh of all ranks after all are connected, because a rank may leave early with an error."""
    mesh = init_device_mesh("cpu", (data, depth), mesh_dim_names=("data", "pipe"))
    torch.distributed.barrier()
    return mesh


def error_of(depth: int, change: str) -> str:
    """Return the message of the error that a wrong argument raises on this rank."""
    mesh = make_mesh(depth)
    stages: list[Any] = make_stages(depth)
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
            BidirectionalPipeline(cut_by_split(depth), mesh, mse_loss, "auto", memory="100B")
        elif change == "costs":
            BidirectionalPipeline(stages, mesh, mse_loss, "auto")
        BidirectionalPipeline(stages, mesh, mse_loss, schedule, replications).step(x, y)
    except (MucudnnError, TypeError) as error:
        torch.distributed.barrier()  # the other rank may still be making its process groups
        return "\n".join((f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])))
    return "no error"


def fail_to_start(depth: int) -> str:
    """Let each rank start its first message after its neighbour ended. Return the error of this rank."""
    mesh = make_mesh(depth)
    pipeline = BidirectionalPipeline(make_stages(depth), mesh, mse_loss, "gpipe", 1)

    def refuse(*_: Any) -> None:
        raise RuntimeError("Connection closed by peer")

    torch.distributed.isend = torch.distributed.irecv = refuse
    (x, y) = mini_batches(1, 8)[0]
    try:
        pipeline.step(x, y)
    except MucudnnError as error:
        return str(error)
    return "no error"


def choose(depth: int) -> tuple[str, str]:
    """Return the schedules that "auto" takes with unlimited memory and with the least sufficient memory."""
    mesh = make_mesh(depth)
    (x, y) = mini_batches(1, 64)[0]
    names = []
    for memory in (None, "least"):
        stages = cut_by_split(depth)
        if memory == "least":
            try:
                BidirectionalPipeline(stages, mesh, mse_loss, "auto", 2, memory="1B")
            except MucudnnError as error:
                memory = str(error).rpartition("the least is ")[2].split()[0]
        pipeline = BidirectionalPipeline(stages, mesh, mse_loss, "auto", 2, memory=memory)
        assert pipeline.timeline is not None
        assert pipeline.timeline.schedule == pipeline.schedule
        pipeline.step(x, y)
        names.append(pipeline.schedule.name)
    return names[0], names[1]
