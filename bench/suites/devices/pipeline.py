"""Pipelines: simulated schedules, and the runtime on real processes against the simulation.

The simulated times count a forward pass as 1 and a backward pass as 2. The measured ones come from stages
that sleep, so that two cores can stand for four devices: they show waiting and messages, not computation.
"""

from __future__ import annotations

import argparse
import itertools
import time
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh

from bench.lib.ranks import values
from bench.lib.record import Record
from mucudnn.solver.devices.pipelines import Stage, simulate_pipeline
from mucudnn.solver.devices.schedules import SCHEDULES
from mucudnn.torch.pipeline import BidirectionalPipeline

DEPTH, MICRO_BATCHES = 4, (2, 8, 32)  # the simulated schedules
FORWARD_MS, BACKWARD_MS = 20.0, 40.0
STEPS = 3


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Yield all figures."""
    yield from simulated()
    for depth, data in ((2, 1), (3, 1), (4, 1), (2, 2)):
        yield from _gradients(depth, data)
    for depth, replications in ((2, 2), (4, 2)):
        yield from _sleeping(depth, replications)


def simulated() -> Iterator[Record]:
    """Yield each schedule's time of a micro-batch, with what a rank holds."""
    for count, (name, make) in itertools.product(MICRO_BATCHES, SCHEDULES.items()):
        pipeline = simulate_pipeline(make(DEPTH, count), [Stage(1.0, 2.0)] * DEPTH)
        details = {
            "live_activations": max(pipeline.live),
            "stages_held": pipeline.schedule.replicas,
            "idle_share": round(pipeline.idle_share, 4),
        }
        case, time_f = f"{name}, D={DEPTH}, {count} micro-batches", pipeline.time_ms / count
        yield Record("pipeline", case, "simulated time of a micro-batch", time_f, "F", details)


def _gradients(depth: int, data: int) -> Iterator[Record]:
    """Yield the largest difference of any gradient from the undivided model's, relative to the largest."""
    ranks = values(depth * data, _compare_all, depth, data)
    for schedule in SCHEDULES:
        error, live = (max(rank[schedule][figure] for rank in ranks) for figure in (0, 1))
        case = f"{schedule}, D={depth}, data {data}"
        yield Record("pipeline", case, "largest error of a gradient, f64", error, "relative", {"live": live})


def _compare_all(depth: int, data: int) -> dict[str, tuple[float, int]]:
    return {schedule: _compare_gradients(schedule, depth, data) for schedule in SCHEDULES}


def _compare_gradients(schedule: str, depth: int, data: int) -> tuple[float, int]:
    mesh = init_device_mesh("cpu", (data, depth), mesh_dim_names=("data", "pipe"))
    torch.manual_seed(0)
    stages = [nn.Sequential(nn.Linear(16, 16), nn.Tanh()).double() for _ in range(depth)]
    x, y = (torch.randn(16 * data, 16, dtype=torch.float64) for _ in range(2))
    nn.functional.mse_loss(nn.Sequential(*stages)(x), y).backward()
    expected = [[p.grad for p in stage.parameters()] for stage in stages]
    for stage in stages:
        stage.zero_grad(set_to_none=True)
    pipeline = BidirectionalPipeline(stages, mesh, nn.functional.mse_loss, schedule, 2)
    mine = slice(16 * mesh.get_local_rank("data"), 16 * (mesh.get_local_rank("data") + 1))
    pipeline.step(x[mine], y[mine])
    errors = [
        float((p.grad - g).abs().max() / g.abs().max())
        for (stage, _), module in pipeline.modules.items()
        for p, g in zip(module.parameters(), expected[stage], strict=True)
    ]
    return max(errors), pipeline.live


class _Sleep(torch.autograd.Function):
    """The identity, whose passes sleep."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        time.sleep(FORWARD_MS / 1e3)
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        time.sleep(BACKWARD_MS / 1e3)
        return gradients[0]


class _SleepingStage(nn.Module):
    """A stage with one weight, which sleeps."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        # The first product lets the first stage sleep in its backward pass too. The second one saves its
        # input, so that recomputing cannot stop before the sleep.
        slept: Tensor = _Sleep.apply(x * self.weight)
        return slept * self.weight


def _sleeping(depth: int, replications: int) -> Iterator[Record]:
    """Yield the measured time of a step over the simulated one, for every schedule and for `auto`."""
    ranks = values(depth, _time_all, depth, replications)
    for name in (*SCHEDULES, "auto"):
        seconds, chosen = max(rank[name] for rank in ranks)
        stages = [Stage(FORWARD_MS, BACKWARD_MS)] * depth
        predicted = simulate_pipeline(SCHEDULES[chosen](depth, 2 * replications), stages).time_ms
        details = {"measured_ms": round(seconds * 1e3, 1), "simulated_ms": predicted, "schedule": chosen}
        case = f"{name}, D={depth}, {2 * replications} micro-batches, stages that sleep"
        yield Record("pipeline", case, "measured over simulated", seconds * 1e3 / predicted, "ratio", details)


def _time_all(depth: int, replications: int) -> dict[str, tuple[float, str]]:
    return {name: _time_steps(depth, replications, name) for name in (*SCHEDULES, "auto")}


def _time_steps(depth: int, replications: int, schedule: str) -> tuple[float, str]:
    mesh = init_device_mesh("cpu", (depth,), mesh_dim_names=("pipe",))
    stages = [_SleepingStage() for _ in range(depth)]
    x = torch.randn(2 * replications, 8)
    example = x if schedule == "auto" else None
    pipeline = BidirectionalPipeline(
        stages, mesh, nn.functional.mse_loss, schedule, replications, example=example
    )
    pipeline.step(x, x)
    times = []
    for _ in range(STEPS):
        dist.barrier()
        start = time.perf_counter()
        pipeline.step(x, x)
        times.append(time.perf_counter() - start)
    return sorted(times)[STEPS // 2], pipeline.schedule.name
