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

from bench.lib.host import host_bench, run_whole
from bench.lib.record import Record
from mucudnn.errors import NothingFitsError
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.runners import Race
from mucudnn.output.text import micro_batches
from mucudnn.plans.decide import Limits, decide
from mucudnn.plans.parts.parts import faster_groups
from mucudnn.problems.kernels import PASSES, Kernel
from mucudnn.problems.sources import Flags, read_kernels
from mucudnn.sizes import format_size, parse_size

LIMITS = ("1MiB", "2MiB", "4MiB", "8MiB", "16MiB", "64MiB")
NETWORKS = ("alexnet", "resnet18")
POLICY = "power_of_two"
ROUNDS = 7
RESUMES = True
BENCH = "channels"
SPEEDUP = "speedup over the best along the mini-batch alone"
HEAD = ("limit", "pass", "kernels", "divided", "mean of all", "of the divided", "least", "most")


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Yield the figures that this machine lacks."""
    with host_bench(Race()) as bench:
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
    compared = cache(lambda *ways: run_whole(bench.engine, kernel, ways, ROUNDS))
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
        groups = faster_groups(bench, kernel, POLICY, limit, chosen)
        if groups is None:
            yield Record(BENCH, case, SPEEDUP, 1.0, "ratio", details)
            continue
        batch_ms, groups_ms = map(statistics.median, compared(chosen, groups).values())
        details |= {
            "ways": f"{details['ways']} | {micro_batches(groups, ' + ')}",
            "batch_ms": batch_ms,
            "groups_ms": groups_ms,
            "predicted": chosen.time_ms / groups.time_ms,
            "workspace": format_size(groups.workspace),
        }
        yield Record(BENCH, case, SPEEDUP, batch_ms / groups_ms, "ratio", details)


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
    mean, rows = statistics.geometric_mean, []
    for place, values in speedups.items():
        figures = mean(values), mean(divided[place] or [1.0]), min(values), max(values)
        counts = str(len(values)), str(len(divided[place]))
        rows.append((*place, *counts, *(f"{value:.2f}" for value in figures)))
    return rows
