"""The memory planner: policies within a limit, and the time of solving.

Nothing runs on a device. The costs are those of a roofline (`mucudnn.measuring.modelled_device`), the times
are simulated.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

from bench.lib.record import Record
from mucudnn.errors import NothingFitsError
from mucudnn.measuring.modelled_device import find_device
from mucudnn.plans.memory.costs import model_costs
from mucudnn.plans.memory.planning import MemoryOptions, plan_network
from mucudnn.problems.bundled import bundled_network, training_step
from mucudnn.problems.network import Network

GIB = 2**30
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
    work = training_step("vgg16-2014", 256)
    for limit in LIMITS:
        plans = {column: _plan(work, limit, column, **options) for column, options in COLUMNS.items()}
        yield from plans.values()
        yield _compare(limit, plans["dynamic"].value, plans["joint"].value)
    for name, batch, device in SOLVED:
        yield from _solve(name, batch, device)


def _plan(network: Network, limit: float, column: str, *, divide: bool = True, **more: Any) -> Record:
    costs = model_costs(network, find_device("titanx"), divide=divide)
    options = MemoryOptions(memory=int(limit * GIB), **more)
    case = f"vgg16(256), {limit:g} GiB, {column}"
    try:
        start = time.perf_counter()
        plan = plan_network(network, costs, options, name="vgg16")
    except NothingFitsError as error:
        return Record("memory", case, "time over unlimited", None, "x", {"reason": str(error)})
    details = {
        "time_ms": plan.time_ms, "exposed_ms": plan.exposed_ms, "floor_gib": plan.floor / GIB,
        "peak_gib": plan.peak / GIB, "seconds": round(time.perf_counter() - start, 2), **_count(plan.tensors),
    }  # fmt: skip
    return Record("memory", case, "time over unlimited", plan.time_ms / plan.unlimited_ms, "x", details)


def _compare(limit: float, dynamic: float | None, joint: float | None) -> Record:
    ratio = dynamic / joint if dynamic is not None and joint is not None else None
    return Record("memory", f"vgg16(256), {limit:g} GiB", "speedup of joint over dynamic", ratio, "x", {})


def _count(tensors: Any) -> dict[str, int]:
    return Counter(tensor.choice for tensor in tensors)


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
