"""The memory planner: baselines, average memory, policies within a limit, and the time of solving.

Nothing runs on a device. The costs are those of a roofline (`mucudnn.measuring.modelled_device`), the times
are simulated.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from typing import Any

from bench.lib.baseline import baseline_bytes
from bench.lib.record import Record
from mucudnn.errors import NothingFitsError
from mucudnn.measuring.modelled_device import find_device
from mucudnn.plans.memory.costs import model_costs
from mucudnn.plans.memory.planning import MemoryOptions, plan_network
from mucudnn.plans.memory.training_step import count_work
from mucudnn.problems.bundled import bundled_network, training_step
from mucudnn.problems.network import Network
from mucudnn.problems.steps import PRESENT
from mucudnn.solver.memory.floor import find_floor
from mucudnn.solver.memory.vdnn import try_static

GIB = 2**30
PAPER = (
    ("alexnet", 128), ("overfeat", 128), ("googlenet", 128), ("vgg16", 64), ("vgg16", 128), ("vgg16", 256),
)  # fmt: skip
LIMITS = (12.0, 11.75, 11.0, 10.5, 10.4, 10.25)
COLUMNS: dict[str, dict[str, Any]] = {
    "joint": {},
    "without division": {"divide": False},
    "without recompute": {"recompute": False},
    "without offload": {"offload": False},
    "dynamic": {"policy": "dynamic", "divide": False},
    "conv": {"policy": "conv", "divide": False},
    "all": {"policy": "all", "divide": False},
}
SOLVED = (
    ("vgg16", 256, "titanx"), ("resnet50", 256, "h200"), ("resnet50", 256, "gh200"), ("unet3d", 2, "h200"),
    ("convnext", 256, "h200"),
)  # fmt: skip
SHARES = (0.7, 0.5, 0.35)  # parts of the peak without a limit


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Yield all figures."""
    for name, batch in PAPER:
        yield _find_baseline(name, batch)
        yield _average(name, batch)
    work = training_step("vgg16-2014", 256)
    yield _run_slowest(work)
    yield from _find_least(work)
    for limit in LIMITS:
        plans = {column: _plan(work, limit, column, **options) for column, options in COLUMNS.items()}
        yield from plans.values()
        yield _compare(limit, plans["dynamic"].value, plans["joint"].value)
    for name, batch, device in SOLVED:
        yield from _solve(name, batch, device)


def _find_baseline(name: str, batch: int) -> Record:
    size = baseline_bytes(bundled_network(name, batch)) / GIB
    details = {"definition": "2 x weights + 2 x features, each memory once, joins not counted"}
    return Record("memory", f"{name}({batch})", "baseline", size, "GiB", details)


def _average(name: str, batch: int) -> Record:
    """Return the mean over time of all bytes but weights and their gradients."""
    network = training_step(f"{name}-2014", batch)
    device = find_device("titanx")
    work = count_work(network, model_costs(network, device, divide=False))
    timeline = try_static(work.numbers, "all", "memory").timeline
    # Gradients of parameters are in the timeline from their step on.
    weights, gradients = network.bytes_of("parameter"), network.bytes_of("gradient")
    mean_gradients = _mean_gradients(network, timeline.starts_ms, timeline.time_ms)
    features = baseline_bytes(bundled_network(name, batch)) - 2 * weights
    held = timeline.average - weights - mean_gradients
    details = {
        "definition": "mean over time of activations, their gradients and the input, by all(m), relative to "
        "2 x features; the paper does not define its average",
        "held_gib": held / GIB,
        "baseline_gib": features / GIB,
        "weights_gib": (weights + gradients) / GIB,
    }
    return Record("memory", f"{name}({batch})", "average of all(m)", held / features - 1, "", details)


def _mean_gradients(network: Network, starts_ms: tuple[float, ...], time_ms: float) -> float:
    area = 0.0
    for tensor in network.tensors:
        if tensor.kind == "gradient":
            produced = network.lifetimes[tensor.name].produced_at or 0
            area += tensor.bytes * (time_ms - starts_ms[produced])
    assert all(tensor.kind in PRESENT for tensor in network.tensors if tensor.kind == "parameter")
    return area / time_ms


def _plan(network: Network, limit: float, column: str, *, divide: bool = True, **more: Any) -> Record:
    costs = model_costs(network, find_device("titanx"), divide=divide)
    options = MemoryOptions(memory=int(limit * GIB), **more)
    case = f"vgg16(256), {limit:g} GiB, {column}"
    try:
        plan = plan_network(network, costs, options, name="vgg16")
    except NothingFitsError as error:
        return Record("memory", case, "time over unlimited", None, "x", {"reason": str(error)})
    details = {
        "time_ms": plan.time_ms, "exposed_ms": plan.exposed_ms, "floor_gib": plan.floor / GIB,
        "peak_gib": plan.peak / GIB, "seconds": round(plan.seconds, 2), **_count(plan.tensors),
    }  # fmt: skip
    return Record("memory", case, "time over unlimited", plan.time_ms / plan.unlimited_ms, "x", details)


def _run_slowest(network: Network) -> Record:
    """Return the time of vDNN's all(m): every tensor leaves, and each kernel takes the least workspace."""
    plan = count_work(network, model_costs(network, find_device("titanx"), divide=False))
    timeline = try_static(plan.numbers, "all", "memory").timeline
    peak = timeline.peak / GIB
    details = {"time_ms": timeline.time_ms, "exposed_ms": timeline.exposed_ms, "peak_gib": peak}
    over = timeline.time_ms / plan.unlimited_ms
    return Record("memory", "vgg16(256), all(m)", "time over unlimited", over, "x", details)


def _find_least(network: Network) -> Iterator[Record]:
    """Yield the least memory of vDNN and of the joint policy. The mini-batch stays in memory under both."""
    work = count_work(network, model_costs(network, find_device("titanx"))).numbers
    details = {"mini_batch_gib": network.bytes_of("input") / GIB}
    least = {"all(m)": try_static(work, "all", "memory").timeline.peak, "joint": find_floor(work)[0]}
    for policy, size in least.items():
        yield Record("memory", f"vgg16(256), {policy}", "least memory", size / GIB, "GiB", details)


def _compare(limit: float, dynamic: float | None, joint: float | None) -> Record:
    ratio = dynamic / joint if dynamic is not None and joint is not None else None
    return Record("memory", f"vgg16(256), {limit:g} GiB", "speedup of joint over dynamic", ratio, "x", {})


def _count(tensors: Any) -> dict[str, int]:
    choices = [tensor.choice for tensor in tensors]
    return {choice: choices.count(choice) for choice in ("keep", "offload", "recompute")}


def _solve(name: str, batch: int, device: str) -> Iterator[Record]:
    """Yield the seconds of planning at shares of the peak without a limit."""
    network = bundled_network(name, batch).with_backward()
    costs = model_costs(network, find_device(device))
    peak = plan_network(network, costs, MemoryOptions(memory=2**50)).peak
    for share in SHARES:
        start, worked = time.perf_counter(), time.process_time()
        case = f"{name}({batch}) on {device}, {share:.0%} of the peak of {peak / GIB:.1f} GiB"
        try:
            plan = plan_network(network, costs, MemoryOptions(memory=int(share * peak)), name=name)
        except NothingFitsError as error:
            yield Record("memory", case, "seconds of planning", None, "s", {"reason": str(error)})
            continue
        seconds = time.perf_counter() - start
        details = {
            "processor_seconds": time.process_time() - worked, "load": os.getloadavg()[0],
            "over_unlimited": plan.time_ms / plan.unlimited_ms, "exposed_ms": plan.exposed_ms,
            "steps": len(network.steps), "tensors": len(plan.tensors), **_count(plan.tensors),
        }  # fmt: skip
        yield Record("memory", case, "seconds of planning", seconds, "s", details)
