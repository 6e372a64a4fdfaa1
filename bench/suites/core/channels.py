"""Channels beside the mini-batch, at small limits.

Each kernel is decided twice within each limit: by its mini-batch alone, and with groups of channels beside
it. Both decisions are run whole, interleaved. Kernels that are not divided along channels count as 1. A race
measures each kernel for all limits at once, as `mucudnn optimize` does.
"""

import argparse
import statistics
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from typing import Any

from bench.lib.host import describe_host, host_bench
from bench.lib.record import Record
from mucudnn._native import Engine
from mucudnn.errors import NothingFitsError
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.buffers import Tensors, allocate_workspace, extent
from mucudnn.output.text import micro_batches
from mucudnn.plans.decide import Limits, decide
from mucudnn.plans.parts.channels import better_groups
from mucudnn.plans.parts.parts import prepare
from mucudnn.problems.kernels import PASSES, Flags, Kernel, read_kernels
from mucudnn.sizes import format_size, parse_size
from mucudnn.solver import ChannelGroups, Configuration

LIMITS = ("1MiB", "2MiB", "4MiB", "8MiB", "16MiB", "64MiB")
NETWORKS = ("alexnet", "resnet18")
POLICY = "power_of_two"
_ROUNDS = 7
RESUMES = True
BENCH = "channels"
SPEEDUP = "speedup over the best along the mini-batch alone"
HEAD = ("limit", "pass", "kernels", "divided", "mean of all", "of the divided", "least", "most")


describe = describe_host


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Yield the figures that this machine lacks."""
    with host_bench(thorough=False) as bench:
        for network in NETWORKS:
            for kernel in read_kernels(network, Flags(batch=64), PASSES):
                cases = {text: f"{kernel.label}, N=64, 1 threads, {text}, {kernel.pass_}" for text in LIMITS}
                missing = {text: case for text, case in cases.items() if case not in options.done}
                if missing:
                    limits = sorted(map(parse_size, missing))
                    benchmark(bench, [kernel], POLICY, comparing=False, limits=limits)
                    yield from _run(bench, kernel, missing)


def _run(bench: Bench, kernel: Kernel, cases: dict[str, str]) -> Iterator[Record]:
    """Decide one kernel within each limit, in both ways, and run both whole.

    Limits with the same two decisions share one run.
    """
    compared = cache(lambda *ways: _times(bench.engine, kernel, *ways))
    for text, case in cases.items():
        limit = parse_size(text)
        details: dict[str, Any] = {"limit": text, "pass": kernel.pass_, "count": kernel.count}
        try:
            [decision] = decide(bench.costs([kernel]), POLICY, Limits(workspace=limit))
        except NothingFitsError:
            yield Record(BENCH, case, SPEEDUP, 1.0, "ratio", {**details, "ways": "nothing fits"})
            continue
        chosen = decision.chosen
        details["ways"] = micro_batches(chosen, " + ")
        groups = better_groups(bench, kernel, POLICY, limit, chosen)
        if groups is None:
            yield Record(BENCH, case, SPEEDUP, 1.0, "ratio", details)
            continue
        batch_ms, groups_ms = compared(chosen, groups)
        details |= {
            "ways": f"{details['ways']} | {micro_batches(groups, ' + ')}",
            "batch_ms": batch_ms,
            "groups_ms": groups_ms,
            "predicted": chosen.time_ms / groups.time_ms,
            "workspace": format_size(groups.workspace),
        }
        yield Record(BENCH, case, SPEEDUP, batch_ms / groups_ms, "ratio", details)


def _times(engine: Engine, kernel: Kernel, *ways: Configuration | ChannelGroups) -> list[float]:
    tensors = Tensors.random(engine, kernel.problem, extent(kernel.problem))
    prepared = [prepare(engine, kernel, way) for way in ways]
    workspace = allocate_workspace(engine, max(one.workspace for one in prepared))
    times = engine.compare(prepared, tensors.x, tensors.w, tensors.y, workspace, rounds=_ROUNDS)
    return [statistics.median(one) for one in times]


def summarize(records: list[Record]) -> list[tuple[str, ...]]:
    """Return the cells below `HEAD` for each limit and pass; means are geometric."""
    speedups: dict[tuple[str, str], list[float]] = defaultdict(list)
    divided: dict[tuple[str, str], list[float]] = defaultdict(list)
    for record in records:
        place = record.details["limit"], record.details["pass"].replace("_", " ")
        if record.value is not None:
            speedups[place].append(record.value)
            if "groups_ms" in record.details:
                divided[place].append(record.value)
    rows = []
    for place, found in speedups.items():
        figures = statistics.geometric_mean(found), *_mean(divided[place]), min(found), max(found)
        counts = str(len(found)), str(len(divided[place]))
        rows.append((*place, *counts, *(f"{value:.2f}" for value in figures)))
    return rows


def _mean(values: list[float]) -> tuple[float]:
    return (statistics.geometric_mean(values or [1.0]),)
