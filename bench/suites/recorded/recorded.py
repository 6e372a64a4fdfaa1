"""ResNet-50's 20 different convolutions, forward, on GPUs whose times dlperf recorded (results/recorded).

Each convolution counts once, and a sum of recorded times is not a whole run. The smallest of many recorded
times flatters the choice, so `split` chooses by the times of one version of cuDNN, and adds those of another.
"""

from __future__ import annotations

import argparse
import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bench.lib.answers import short, table
from bench.lib.record import RESULTS, Record
from bench.suites.recorded import models
from mucudnn.costs.cache import Cache
from mucudnn.costs.recorded import recorded_rows
from mucudnn.costs.table import CostTable
from mucudnn.input import read_packed
from mucudnn.plans.decide import Limits, decide
from mucudnn.plans.result import total
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.sources import Flags, read_kernels
from mucudnn.solver import Configuration

FILE = RESULTS / "recorded" / "dlperf.csv.xz"
MIB, POLICY = 2**20, "power_of_two"
SIZES = (128, 256)
FORMS = (("f32", "nchw"), ("f16", "nchw"), ("f16", "nhwc"))
LIMITS = {
    **{f"{mib} MiB a layer": Limits(mib * MIB) for mib in (8, 64, 256)},
    **{f"{mib} MiB in total": Limits(total=mib * MIB) for mib in (20, 160, 640, 1280)},
    "no limit": Limits(),
}
UNDIVIDED, DIVIDED, WHOLE = "undivided", "divided", "whole network"
LAYERS, BEST = "mean of the layers", "best layer"
SPLIT = tuple(f"{way}, chosen by {by}" for by in ("itself", "cuDNN 7.6.3") for way in (UNDIVIDED, DIVIDED))
CLOSE = 1.01  # the time within a limit that is enough, over the unlimited time without division
HEAD = ("GPU, cuDNN", "form", "N", "workspace", "undivided ms", "divided ms", WHOLE, LAYERS, BEST)
LEAST_HEAD = ("GPU, cuDNN", "form", "N", "undivided, MiB a layer", "divided, MiB a layer")
SPLIT_HEAD = ("N", "workspace", *SPLIT)
V100 = "Tesla V100-SXM2-16GB"
LAYERS_OF_RESNET50 = str(Path(__file__).with_name("resnet50.txt"))


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Compute all figures of each GPU that has every convolution at a mini-batch."""
    with Cache.in_memory(Path("/no/cache")) as cache:
        rows = recorded_rows(read_packed(FILE).decode(), FILE) or []
        cache.merge(rows)
        machines = {f"{m.device.removeprefix('recorded ')}, {m.library}": m for m in cache.machines()}
        by_name = {
            f"{name}; {type_} {layout}; {n}": costs
            for name, machine in machines.items()
            for type_, layout in FORMS
            for n in SIZES
            if is_whole(costs := CostTable.read(cache, machine, kernels(type_, layout, n)))
        }
        early = machines[f"{V100}, layout not named, cuDNN 7.6.3"]
        small = {n: CostTable.read(cache, early, kernels("f32", "nchw", n)) for n in SIZES}
    for name, costs in by_name.items():
        yield from compare(name, costs)
        yield from least_limits(name, costs)
    for n in SIZES:
        first, second = (by_name[f"{V100}, cuDNN 7.6.{version}; f32 nchw; {n}"] for version in (3, 4))
        yield from split(n, join(first, small[n]), second)
    yield from models.compare_models(rows)


def kernels(type_: str, layout: str, n: int) -> list[Kernel]:
    """Return the forward kernels of ResNet-50, each once."""
    return read_kernels(LAYERS_OF_RESNET50, Flags(n, type_, layout), ["forward"])


def join(costs: CostTable, other: CostTable) -> CostTable:
    """Return a table with the rows of both: another run of the same device has the small micro-batches."""
    rows = {kernel: [*own, *other.measurements[kernel]] for kernel, own in costs.measurements.items()}
    return replace(costs, measurements=rows)


def is_whole(costs: CostTable) -> bool:
    """Return whether each kernel has a recorded time for its whole mini-batch."""
    return all(any(row.micro_batch == k.mini_batch for row in rows) for k, rows in costs.measurements.items())


def compare(name: str, costs: CostTable) -> Iterator[Record]:
    """Yield the times within each limit, and the speedups of the layers."""
    for limit, limits in LIMITS.items():
        case, decisions = f"{name}; {limit}", decide(costs, POLICY, limits)
        sums = total(decisions)
        speedups = [d.undivided.time_ms / d.divided.time_ms for d in decisions if d.undivided]
        yield Record("recorded", case, UNDIVIDED, sums.undivided_ms, "ms")
        yield Record("recorded", case, DIVIDED, sums.divided_ms, "ms")
        yield Record("recorded", case, WHOLE, sums.speedup, "")
        yield Record("recorded", case, LAYERS, statistics.geometric_mean(speedups), "")
        yield Record("recorded", case, BEST, max(speedups), "")


def least_limits(name: str, costs: CostTable) -> Iterator[Record]:
    """Yield the least limits of a layer, without and with division, within which the sums are CLOSE."""
    enough = CLOSE * (total(decide(costs, POLICY, Limits())).undivided_ms or 0.0)
    limits = sorted({row.workspace for rows in costs.measurements.values() for row in rows})
    for metric in (UNDIVIDED, DIVIDED):

        def is_enough(limit: int, metric: str = metric) -> bool:
            ms: float | None = getattr(total(decide(costs, POLICY, Limits(limit))), f"{metric}_ms")
            return ms is not None and ms <= enough

        least = limits[bisect_left(limits, True, key=is_enough)]
        yield Record("recorded", name, f"least limit, {metric}", least / MIB, "MiB")


def split(n: int, first: CostTable, second: CostTable) -> Iterator[Record]:
    """Yield the times of the second table's rows: chosen by itself, and chosen by the first table."""
    for limit, limits in LIMITS.items():
        for chooser, costs in (("itself", second), ("cuDNN 7.6.3", first)):
            decisions = decide(costs, POLICY, limits)
            for metric in (UNDIVIDED, DIVIDED):
                ms = sum_of(second, [getattr(decision, metric) for decision in decisions])
                yield Record("split", f"{n}; {limit}", f"{metric}, chosen by {chooser}", ms, "ms")


def sum_of(costs: CostTable, chosen: Iterable[Configuration]) -> float:
    """Return the sum of a table's times for some configurations."""
    return sum(
        row.time_ms or 0.0
        for rows, configuration in zip(costs.measurements.values(), chosen, strict=True)
        for part in configuration.parts
        for row in rows
        if (row.micro_batch, row.algorithm) == (part.micro_batch, part.algorithm)
    )


def tables(records: Sequence[Record]) -> list[str]:
    """Return the tables of all figures."""
    lines = []
    for head, bench, columns in (
        (HEAD, "recorded", (UNDIVIDED, DIVIDED, WHOLE, LAYERS, BEST)),
        (LEAST_HEAD, "recorded", (f"least limit, {UNDIVIDED}", f"least limit, {DIVIDED}")),
        (SPLIT_HEAD, "split", SPLIT),
        (models.HEAD, "models", models.COLUMNS),
    ):
        cases: dict[str, dict[str, str]] = defaultdict(dict)
        for record in records:
            if record.bench == bench:
                figures = {record.metric: record.value, **record.details}
                cases[record.case] |= {name: short(figure or 0.0) for name, figure in figures.items()}
        rows = (
            (*case.split("; "), *(own.get(column, "") for column in columns))
            for case, own in cases.items()
            if columns[0] in own
        )
        lines += [*table(head, rows), ""]
    return lines
