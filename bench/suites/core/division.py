"""Divided against undivided kernels within the same workspace limit, both run whole and interleaved.

Sums of parts that are timed one by one promise too much. The kernels come from AlexNet and ResNet-18.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from bench.lib.host import host_bench
from bench.lib.record import Record
from mucudnn.measuring.bench import Bench
from mucudnn.plans.decide import Decision, Limits, desirable_configurations
from mucudnn.plans.optimizer import optimize
from mucudnn.plans.result import predicted
from mucudnn.problems.kernels import PASSES, Kernel
from mucudnn.problems.sources import Flags, read_kernels
from mucudnn.report.curves import even_curve
from mucudnn.sizes import format_size
from mucudnn.solver import divide_workspace

MIB = 2**20
POLICY = "power_of_two"
LIMIT = Limits(workspace=64 * MIB)


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Yield the figures; all of them share one cache of measurements."""
    with host_bench() as bench:
        for pass_ in PASSES:
            yield from _speedups(bench, kernels(pass_))
        yield from total_workspace(bench)


def kernels(pass_: str) -> list[Kernel]:
    """Return AlexNet's conv2 to conv5 and ResNet-18's 3x3 of stride 1 in one pass, N=64, with count 1."""
    alexnet = [k for k in read_kernels("alexnet", Flags(), [pass_]) if not k.name.endswith("conv1")]
    resnet = [
        k
        for k in read_kernels("resnet18", Flags(), [pass_])
        if k.problem.kernel == (3, 3) and k.problem.stride == (1, 1)
    ]
    return [Kernel(k.problem, k.pass_, k.name) for k in alexnet + resnet]


def _speedups(bench: Bench, kernels: list[Kernel]) -> list[Record]:
    return [_speedup(decision) for decision in optimize(bench, kernels, POLICY, LIMIT).decisions]


def _speedup(decision: Decision) -> Record:
    comparison, kernel = decision.comparison, decision.kernel
    assert comparison is not None
    assert comparison.undivided_ms is not None
    assert decision.undivided is not None
    details = {
        "problem": str(kernel.problem),
        "undivided": str(decision.undivided),
        "undivided_ms": comparison.undivided_ms,
        "divided": str(decision.divided),
        "divided_ms": comparison.divided_ms,
        "predicted": predicted(decision.outrun or decision).speedup,
        "workspace": decision.divided.workspace,
    }
    speedup = comparison.undivided_ms / comparison.divided_ms
    return Record(
        "division",
        f"{kernel.name} {kernel.pass_}",
        "speedup at 64 MiB, re-measured",
        speedup,
        "ratio",
        details,
    )


def total_workspace(bench: Bench) -> Iterator[Record]:
    """Yield, for several totals of workspace, the time of WR over that of WD, summed over all kernels.

    WR gives every kernel the same part of the total, WD divides the total by need. The times are predicted
    from measurements, not run.
    """
    fronts = {}
    for kernel in (kernel for pass_ in PASSES for kernel in kernels(pass_)):
        measured = bench.costs([kernel]).measurements[kernel]
        fronts[kernel] = desirable_configurations(measured, kernel)
    even = even_curve(fronts)
    for workspace in (32 * MIB << step for step in range(7)):
        wr = even.at(workspace)
        wd = sum(choice.time_ms for choice in divide_workspace(fronts, workspace).values())
        details = {"wr_ms": wr, "wd_ms": wd}
        ratio = None if wr is None else wr / wd
        yield Record("totals", format_size(workspace), "WR's time over WD's", ratio, "ratio", details)
