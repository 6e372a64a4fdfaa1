"""ResNet-50's 20 different convolutions, forward, on GPUs whose times dlperf recorded (results/recorded).

Each convolution counts once, and a sum of recorded times is not a whole run. The smallest of many recorded
times flatters the choice, so `split` chooses by the times of one version of cuDNN, and adds those of another.
"""

from __future__ import annotations

import argparse
import statistics
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from bench.lib.answers import short, table
from bench.lib.record import RESULTS, Record
from mucudnn._native import parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.costs.recorded import find_format, recorded_rows
from mucudnn.costs.table import CostTable
from mucudnn.input import read_packed
from mucudnn.plans.decide import Decision, Limits, decide
from mucudnn.plans.result import total
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration

FILE = RESULTS / "recorded" / "dlperf.csv.xz"
MIB = 2**20
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
# (channels, image, filters, taps, padding, stride)
LAYERS_OF_RESNET50 = (
    (3, 224, 64, 7, 3, 2), (64, 56, 64, 1, 0, 1), (64, 56, 64, 3, 1, 1), (64, 56, 256, 1, 0, 1),
    (256, 56, 64, 1, 0, 1), (256, 56, 128, 1, 0, 2), (256, 56, 512, 1, 0, 2), (128, 28, 128, 3, 1, 1),
    (128, 28, 512, 1, 0, 1), (512, 28, 128, 1, 0, 1), (512, 28, 256, 1, 0, 2), (512, 28, 1024, 1, 0, 2),
    (256, 14, 256, 3, 1, 1), (256, 14, 1024, 1, 0, 1), (1024, 14, 256, 1, 0, 1), (1024, 14, 512, 1, 0, 2),
    (1024, 14, 2048, 1, 0, 2), (512, 7, 512, 3, 1, 1), (512, 7, 2048, 1, 0, 1), (2048, 7, 512, 1, 0, 1),
)  # fmt: skip


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Compute all figures of each GPU that has every convolution at a mini-batch."""
    with Cache.in_memory(Path("/no/cache")) as cache:
        text = read_packed(FILE).decode()
        found = find_format(FILE, text)
        assert found is not None
        cache.merge(recorded_rows(found, text, FILE))
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


def kernels(type_: str, layout: str, n: int) -> list[Kernel]:
    """Return the forward kernels of ResNet-50, each once."""
    texts = (
        f"mb{n}_ic{c}ih{image}_oc{k}_kh{taps}_ph{padding}_sh{stride}"
        for c, image, k, taps, padding, stride in LAYERS_OF_RESNET50
    )
    return [Kernel(parse_descriptor(f"{type_}:{layout}:{text}")[0], "forward") for text in texts]


def join(costs: CostTable, other: CostTable) -> CostTable:
    """Return a table with the rows of both: another run of the same device has the small micro-batches."""
    rows = {kernel: [*own, *other.measurements[kernel]] for kernel, own in costs.measurements.items()}
    return replace(costs, measurements=rows)


def is_whole(costs: CostTable) -> bool:
    """Return whether each kernel has a recorded time for its whole mini-batch."""
    return all(any(row.micro_batch == k.mini_batch for row in rows) for k, rows in costs.measurements.items())


def choose(costs: CostTable, limits: Limits) -> list[Decision]:
    """Return the choices within limits."""
    return decide(costs, "power_of_two", limits)


def compare(name: str, costs: CostTable) -> Iterator[Record]:
    """Yield the times within each limit, and the speedups of the layers."""
    for limit, limits in LIMITS.items():
        case, decisions = f"{name}; {limit}", choose(costs, limits)
        sums = total(decisions)
        speedups = [d.undivided.time_ms / d.divided.time_ms for d in decisions if d.undivided]
        yield Record("recorded", case, UNDIVIDED, sums.undivided_ms, "ms")
        yield Record("recorded", case, DIVIDED, sums.divided_ms, "ms")
        yield Record("recorded", case, WHOLE, sums.speedup, "")
        yield Record("recorded", case, LAYERS, statistics.geometric_mean(speedups), "")
        yield Record("recorded", case, BEST, max(speedups), "")


def least_limits(name: str, costs: CostTable) -> Iterator[Record]:
    """Yield the least limits of a layer, without and with division, within which the sums are CLOSE."""
    enough = CLOSE * (total(choose(costs, Limits())).undivided_ms or 0.0)
    limits = sorted({row.workspace for rows in costs.measurements.values() for row in rows})
    for metric in (UNDIVIDED, DIVIDED):

        def is_enough(limit: int, metric: str = metric) -> bool:
            sums = total(choose(costs, Limits(limit)))
            ms = sums.undivided_ms if metric == UNDIVIDED else sums.divided_ms
            return ms is not None and ms <= enough

        least = limits[bisect_left(limits, True, key=is_enough)]
        yield Record("recorded", name, f"least limit, {metric}", least / MIB, "MiB")


def split(n: int, first: CostTable, second: CostTable) -> Iterator[Record]:
    """Yield the times of the second table's rows: chosen by itself, and chosen by the first table."""
    for limit, limits in LIMITS.items():
        for chooser, costs in (("itself", second), ("cuDNN 7.6.3", first)):
            decisions = choose(costs, limits)
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
    values: dict[str, dict[str, dict[str, float]]] = {"recorded": {}, "split": {}}
    for record in records:
        values[record.bench].setdefault(record.case, {})[record.metric] = record.value or 0.0
    lines = []
    for head, bench, columns in (
        (HEAD, "recorded", (UNDIVIDED, DIVIDED, WHOLE, LAYERS, BEST)),
        (LEAST_HEAD, "recorded", (f"least limit, {UNDIVIDED}", f"least limit, {DIVIDED}")),
        (SPLIT_HEAD, "split", SPLIT),
    ):
        rows = (
            (*case.split("; "), *(short(own[column]) for column in columns))
            for case, own in values[bench].items()
            if columns[0] in own
        )
        lines += [*table(head, rows), ""]
    return lines
