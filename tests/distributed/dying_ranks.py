"""A training in which one rank is killed in the middle of a step, for `test_dying_ranks`."""

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

from mucudnn.errors import MucudnnError
from mucudnn.torch import spatial
from mucudnn.torch.pipeline import BidirectionalPipeline

TIMEOUT = 20.0  # seconds


def stages_in(schedule: str) -> Callable[[], object]:
    """Return a function that runs a step of a pipeline with a stage on each rank."""
    world = dist.get_world_size()
    stages = [stage.double() for stage in pipeline_cases.make_stages(world)]
    mesh = pipeline_cases.make_mesh(world)
    pipeline = BidirectionalPipeline(stages, mesh, pipeline_cases.loss, schedule, timeout=TIMEOUT)
    [(x, y)] = pipeline_cases.mini_batches(1, 8)

    def step() -> None:
        before = [p.grad.clone() for p in pipeline.parameters() if p.grad is not None]
        try:
            pipeline.step(x, y)
        except MucudnnError:
            assert all(map(torch.equal, before, (p.grad for p in pipeline.parameters())))
            raise
        pipeline.clip_grad_norm_(1.0)
        pipeline.evaluate(x, everywhere=True)

    return step


def divided(axis: str) -> Callable[[], object]:
    """Return a function that runs a step of a model of which each rank has a part of every sample."""
    mesh = spatial.init_mesh("cpu", timeout=TIMEOUT, depth=dist.get_world_size())
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))
    x = torch.randn(2, 2, 16, 16)

    def step() -> None:
        model(spatial.divide(x, mesh, {int(axis): "depth"}, statistics="all")).gather().sum().backward()

    return step


def train(make: Callable[[str], Callable[[], object]], how: str, victim: int, share: float) -> str:
    """Run steps until one fails, and return the error.

    The victim is killed when it has made this share of the calls of the second step.
    """
    step = make(how)
    calls = most = 0

    def count(frame: FrameType, event: str, _: object) -> None:
        nonlocal calls
        calls += 1
        if calls == most:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count if dist.get_rank() == victim else None)
    step()
    most, calls = int(calls * share), 0
    try:
        for _ in range(3):
            step()
    except MucudnnError as error:
        return str(error)
    finally:
        sys.setprofile(None)
    return "no error"
