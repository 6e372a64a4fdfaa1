"""A training in which one rank is killed in a step or as it is built, for `test_dying_ranks`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from types import FrameType

import pipeline_cases
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

from mucudnn.errors import MucudnnError
from mucudnn.torch import spatial
from mucudnn.torch.pipeline import BidirectionalPipeline, split

Action = Callable[[], object]
TIMEOUT = 20.0  # seconds


def stages_in(schedule: str) -> tuple[Action, Action]:
    """Return functions that make a pipeline with a stage on each rank, and that run a step of it."""
    world = dist.get_world_size()
    stages = pipeline_cases.make_stages(world)
    mesh = pipeline_cases.make_mesh(world)

    def build() -> BidirectionalPipeline:
        return BidirectionalPipeline(stages, mesh, pipeline_cases.mse_loss, schedule, timeout=TIMEOUT)

    pipeline = build()
    [(x, y)] = pipeline_cases.mini_batches(1, 8)

    def step() -> None:
        before = [p.grad.clone() for p in pipeline.parameters() if p.grad is not None]
        try:
            pipeline.step(x, y)
        except MucudnnError:
            assert all(map(torch.equal, before, (p.grad for p in pipeline.parameters())))
            raise
        pipeline.clip_grad_norm_(1.0)
        pipeline.evaluate(x)

    return build, step


def cut(stages: str) -> tuple[Action, Action]:
    """Return twice a function that splits a model."""
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)))

    def build() -> object:
        return split(model, stages=int(stages), example_input=torch.ones(2, 8))

    return build, build


def divided(axis: str) -> tuple[Action, Action]:
    """Return functions that make a mesh, and that run a training step on samples divided over it."""

    def build() -> DeviceMesh:
        return spatial.init_mesh("cpu", timeout=TIMEOUT, depth=dist.get_world_size())

    mesh = build()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))
    x = torch.randn(2, 2, 16, 16)

    def step() -> None:
        model(spatial.divide(x, mesh, {int(axis): "depth"}, statistics="all")).gather().sum().backward()

    return build, step


def repeat(
    make: Callable[[str], tuple[Action, Action]], how: str, is_step: bool, victim: int, share: float
) -> str:
    """Build, or run a step, until one fails, and return the error.

    The victim is killed when it has made this share of the calls of the second one.
    """
    act = make(how)[is_step]
    act()  # the first one also makes calls that no other does
    calls = most = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += 1
        if calls == most:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count if dist.get_rank() == victim else None)
    act()
    most, calls = int(calls * share), 0
    try:
        for _ in range(3):
            act()
    except MucudnnError as error:
        return str(error)
    finally:
        sys.setprofile(None)
    return "no error"
