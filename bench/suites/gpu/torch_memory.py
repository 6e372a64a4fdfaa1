"""Time training steps in less memory, in one of several ways.

A plan's memory is a part of the peak of stock PyTorch, which the program measures first. It prints one line
of JSON. On the CPU a plan is made with modelled costs of an H200 and is not run.
"""

from __future__ import annotations

import argparse
import json
import math
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from bench.lib.models import TRAINED, build_trained
from bench.suites.gpu.torch_timing import MIB, median_milliseconds, peak_mib, versions
from bench.suites.gpu.training import MEMORY_WAYS, PLANS
from mucudnn.errors import NothingFitsError
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.torch import apply, plan_memory, restore

Answer = dict[str, Any]


def main() -> None:
    """Train in one way; print the time of a step, the peak, and the plan's predictions."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("network", choices=TRAINED)
    parser.add_argument("way", choices=MEMORY_WAYS)
    parser.add_argument("--steps", type=int, default=10, help="steps for the median")
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    model, x = (part.to(device) for part in build_trained(arguments.network, small=device.type != "cuda"))
    answer = measure(arguments.way, model.train(), x, arguments.steps)
    print(json.dumps({**answer, **versions(device)}))


def measure(way: str, model: nn.Module, x: Tensor, steps: int) -> Answer:
    """Return the figures of a way to train, or `why` there are none."""
    if way in PLANS:
        return _measure_plan(PLANS[way], model, x, steps)
    context: Callable[[], AbstractContextManager[Any]] = nullcontext
    run: Callable[[Tensor], Tensor] = model
    if way == "save_on_cpu":
        context = lambda: save_on_cpu(pin_memory=x.is_cuda)  # noqa: E731
    elif way == "checkpoint":
        run = _in_segments(model)
    return _time(model, x, steps, run, context)


def undecided(plan: MemoryPlan) -> MemoryPlan:
    """Return the plan with the same kernels, in which all tensors stay on the device."""
    kept = tuple(replace(t, choice="keep", release_at=None, fetch_at=None) for t in plan.tensors)
    return replace(plan, tensors=kept, fetch_order=(), host_bytes=0)


def _measure_plan(part: float, model: nn.Module, x: Tensor, steps: int) -> Answer:
    stock = _time(model, x, 1)
    modelled = None if x.is_cuda else "h200"
    most = plan_memory(model, x, memory=2**50, device=modelled)
    memory = int(part * (stock["peak_mib"] * MIB if x.is_cuda else most.peak))
    figures: Answer = {"memory_mib": memory / MIB, "floor_mib": most.floor / MIB}
    try:
        plan = plan_memory(model, x, memory=memory, device=modelled)
    except NothingFitsError as error:
        return {**figures, "why": str(error)}
    figures |= {
        "choices": Counter(tensor.choice for tensor in plan.tensors),
        "predicted_peak_mib": plan.peak / MIB,
        "predicted_ms": plan.time_ms,
        "predicted_exposed_ms": plan.exposed_ms,
    }
    if not x.is_cuda:
        return figures
    apply(model, undecided(plan))
    kept = _time(model, x, steps)
    restore(model)
    apply(model, plan)
    planned = _time(model, x, steps)
    return {**figures, **planned, "beyond_ms": planned["step_ms"] - kept["step_ms"]}


def _time(
    model: nn.Module,
    x: Tensor,
    steps: int,
    run: Callable[[Tensor], Tensor] | None = None,
    context: Callable[[], AbstractContextManager[Any]] = nullcontext,
) -> Answer:
    """Return the median ms of a step, and the peak of PyTorch's allocator from the second step on."""

    def step() -> None:
        model.zero_grad(set_to_none=True)
        with context():
            loss = (run or model)(x).square().mean()
        loss.backward()

    step()
    if x.is_cuda:
        torch.cuda.reset_peak_memory_stats(x.device)
    return {"step_ms": median_milliseconds(x.device, step, steps), "peak_mib": peak_mib(x.device)}


def _in_segments(model: nn.Module) -> Callable[[Tensor], Tensor]:
    """Return the model with about as many checkpoints as there are modules between two of them."""
    if isinstance(model, nn.Sequential):
        segments = max(1, math.isqrt(len(model)))
        return lambda x: checkpoint_sequential(model, segments, x, use_reentrant=False)
    return lambda x: checkpoint(model, x, use_reentrant=False)


if __name__ == "__main__":
    main()
