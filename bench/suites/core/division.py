"""Divided against undivided kernels within the same workspace limit, both run whole and interleaved.

Sums of parts that are timed one by one promise too much. The kernels come from AlexNet, ResNet-18 and
DeepBench.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator

from bench.lib.host import host_bench, run_whole
from bench.lib.record import Record
from mucudnn._native import Engine
from mucudnn.costs.table import CostTable
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.buffers import Tensors, extent
from mucudnn.plans.decide import Decision, Limits, decide, desirable_configurations, sum_times
from mucudnn.plans.optimizer import optimize
from mucudnn.problems.kernels import PASSES, Flags, Kernel, read_kernels
from mucudnn.report.curves import even_curve
from mucudnn.sizes import format_size
from mucudnn.solver import Configuration, divide_workspace

MIB = 2**20
POLICY = "power_of_two"
LIMIT = Limits(workspace=64 * MIB)
SWEEP: tuple[int | None, ...] = (0, MIB, 8 * MIB, 32 * MIB, 64 * MIB, 256 * MIB, None)
ROUNDS = 7
DEEPBENCH = [f"deepbench:conv{number}" for number in (9, 11, 19, 24)]  # two 3x3 kernels, two 5x5 kernels
IDENTICAL_BATCH = 16
IDENTICAL_TOTALS = (8 * MIB, 16 * MIB, 64 * MIB, 256 * MIB)


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Yield the figures; all of them share one cache of measurements."""
    with host_bench() as bench:
        for pass_ in PASSES:
            yield from _speedups(bench, "division", kernels(pass_), f"all {pass_}")
        yield from _speedups(bench, "deepbench", deepbench(), "all forward")
        yield from sweep(bench)
        yield from total_workspace(bench)
        yield from against_torch(bench)
        resnet = read_kernels("resnet50", Flags(batch=IDENTICAL_BATCH), PASSES)
        benchmark(bench, resnet, POLICY, comparing=False)
        yield from compare_identical(bench.costs(resnet))


def kernels(pass_: str) -> list[Kernel]:
    """Return AlexNet's conv2 to conv5 and ResNet-18's 3x3 of stride 1 in one pass, N=64, with count 1."""
    alexnet = [k for k in read_kernels("alexnet", Flags(), [pass_]) if not k.name.endswith("conv1")]
    resnet = [
        k
        for k in read_kernels("resnet18", Flags(), [pass_])
        if k.problem.kernel == (3, 3) and k.problem.stride == (1, 1)
    ]
    return [Kernel(k.problem, k.pass_, k.name) for k in alexnet + resnet]


def deepbench() -> list[Kernel]:
    """Return four forward kernels of DeepBench at its largest mini-batch; each takes a second at most."""
    kernels = read_kernels("deepbench", Flags(batch=32), ("forward",))
    return [kernel for kernel in kernels if kernel.name in DEEPBENCH]


def _speedups(bench: Bench, theme: str, kernels: list[Kernel], case: str) -> list[Record]:
    result = optimize(bench, kernels, POLICY, LIMIT)
    records = [_speedup(theme, decision) for decision in result.decisions]
    speedups = [record.value for record in records if record.value is not None]
    details = {"best": max(speedups), "worst": min(speedups), "kernels": len(speedups)}
    mean = statistics.geometric_mean(speedups)
    records.append(Record(theme, case, "geometric mean of speedups", mean, "ratio", details))
    return records


def _speedup(theme: str, decision: Decision) -> Record:
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
        "predicted": decision.undivided.time_ms / decision.divided.time_ms,
        "held_up": not decision.dropped,
        "workspace": decision.chosen.workspace,
        "error": comparison.error,
        "undivided_error": comparison.undivided_error,
    }
    speedup = 1.0 if decision.dropped else comparison.undivided_ms / comparison.divided_ms
    name = f"{kernel.name} {kernel.pass_}"
    return Record(theme, name, "speedup at 64 MiB, re-measured", speedup, "ratio", details)


def sweep(bench: Bench) -> list[Record]:
    """Return the time of all forward kernels together within each limit, in ms.

    The configurations that the limits choose for a kernel run interleaved.
    """
    totals = dict.fromkeys(SWEEP, 0.0)
    for kernel in kernels("forward"):
        costs = bench.costs([kernel])
        chosen = {limit: decide(costs, POLICY, Limits(workspace=limit))[0] for limit in SWEEP}
        candidates = {c for decision in chosen.values() for c in (decision.undivided, decision.divided) if c}
        times = run_whole(bench.engine, kernel, sorted(candidates, key=lambda c: c.workspace), ROUNDS)
        medians = {configuration: statistics.median(runs) for configuration, runs in times.items()}
        for limit, decision in chosen.items():
            totals[limit] += min(medians[c] for c in (decision.undivided, decision.divided) if c)
    return [
        Record("limits", "none" if limit is None else format_size(limit), "sum of times, forward", ms, "ms")
        for limit, ms in totals.items()
    ]


def total_workspace(bench: Bench) -> list[Record]:
    """Return, for several totals of workspace, the time of WR over that of WD, summed over all kernels.

    WR gives every kernel the same part of the total, WD divides the total by need. The times are predicted
    from measurements, not run.
    """
    fronts = {}
    for pass_ in PASSES:
        for kernel in kernels(pass_):
            measured = bench.costs([kernel]).measurements[kernel]
            fronts[kernel] = desirable_configurations(measured, kernel)
    totals = [32 * MIB << step for step in range(7)]
    even = even_curve(fronts)
    records = []
    for total in totals:
        wr = even.at(total)
        wd = sum(choice.time_ms for choice in divide_workspace(fronts, total).values())
        details = {"wr_ms": wr, "wd_ms": wd, "kernels": len(fronts)}
        ratio = None if wr is None else wr / wd
        records.append(Record("totals", format_size(total), "WR's time over WD's", ratio, "ratio", details))
    return records


def against_torch(bench: Bench) -> list[Record]:
    """Return the speedup of each forward kernel over `torch.nn.functional.conv2d`, and that of their sum.

    The kernel runs as it is decided at 64 MiB. Both run on one thread, interleaved.
    """
    import torch  # the other figures need no PyTorch

    torch.set_num_threads(1)
    records, ours_total, theirs_total = [], 0.0, 0.0
    for kernel in kernels("forward"):
        decision = decide(bench.costs([kernel]), POLICY, LIMIT)[0]
        ours, theirs = _interleave_with_torch(bench.engine, kernel, decision.divided)
        ours_total, theirs_total = ours_total + ours, theirs_total + theirs
        details = {"divided": str(decision.divided), "divided_ms": ours, "torch_ms": theirs}
        records.append(Record("torch", kernel.name, "speedup over torch", theirs / ours, "ratio", details))
    details = {"divided_ms": ours_total, "torch_ms": theirs_total, "torch": torch.__version__}
    ratio = theirs_total / ours_total
    records.append(Record("torch", "sum", "speedup over torch", ratio, "ratio", details))
    return records


def _interleave_with_torch(engine: Engine, kernel: Kernel, divided: Configuration) -> tuple[float, float]:
    import torch

    problem = kernel.problem
    tensors = Tensors.random(engine, problem, extent(problem))
    workspace = engine.allocate(divided.workspace)
    divisions = [engine.prepare(kernel, divided.slices)]
    x = torch.rand(problem.mini_batch, problem.in_channels, *problem.input)
    w = torch.rand(problem.out_channels, problem.in_channels, *problem.kernel)
    ours, theirs = [], []
    with torch.inference_mode():
        for _ in range(ROUNDS + 1):
            (times,) = engine.compare(divisions, tensors.x, tensors.w, tensors.y, workspace, rounds=1)
            ours += times
            torch.nn.functional.conv2d(x, w, padding=problem.padding)
            start = time.perf_counter()
            torch.nn.functional.conv2d(x, w, padding=problem.padding)
            theirs.append((time.perf_counter() - start) * 1e3)
    return statistics.median(ours[1:]), statistics.median(theirs[1:])


def compare_identical(costs: CostTable) -> Iterator[Record]:
    """Yield the time of one configuration for all identical kernels over that of several, for each total.

    The times are predicted from the measurements, not run.
    """
    for total in IDENTICAL_TOTALS:
        decisions = decide(costs, POLICY, Limits(total=total, exact=True))
        together, apart = sum_times(decisions), sum_times(one for d in decisions for one in d.apart)
        details = {
            "together_ms": together,
            "apart_ms": apart,
            "kernels": len(decisions),
            "occurrences": sum(decision.kernel.count for decision in decisions),
        }
        ratio = together / apart
        yield Record("shares", format_size(total), "time together over apart", ratio, "ratio", details)
