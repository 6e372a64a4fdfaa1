"""Kernels on the engine alone: what cuDNN's engines offer, and the speedups by division within limits.

The measurements themselves go to `measurements.jsonl.gz` in the results' folder. A record of `engines` sums
up those of a kernel, from the whole mini-batch down to 1.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import zip_longest
from typing import Any

from bench.lib.host import run_whole
from bench.lib.record import Record
from bench.suites.gpu.run import Case, Run
from bench.suites.gpu.setting import MIB
from mucudnn.costs.records import Measurement
from mucudnn.errors import NothingFitsError
from mucudnn.measuring.benchmark import benchmark
from mucudnn.plans.decide import Decision, Limits, decide
from mucudnn.problems.kernels import PASSES, Kernel
from mucudnn.solver import Configuration

TYPES = ("TF32 NCHW", "bf16 NCHW", "fp32 NCHW")  # the columns whose engines are listed
TENSOR = "tensor_op"
LIMITS = tuple(mib * MIB for mib in (8, 64, 128, 512))
ROUNDS = 10
# The measured kernels of ResNet-50: the first layer, and conv2 and conv3 of each stage's first two blocks.
RESNET = re.compile(r"layer[1-4]\.[01]\.conv[23]|conv1")
# The columns of DeepBench, the benchmark of the μ-cuDNN paper. The paper has fp32 only.
PAPER = ("fp32 NCHW", "TF32 NCHW", "fp16 NCHW")


def engines(run: Run) -> Iterator[Case]:
    """Yield the kernels, forward first; each in all data types before the next kernel begins."""
    for pass_ in PASSES:
        for kernels in zip(*(_listed(run, column, pass_) for column in TYPES), strict=True):
            for column, kernel in zip(TYPES, kernels, strict=True):
                case = f"{kernel}, {column}"
                yield Case("engines", case, partial(_engines, run, kernel, case))


def _listed(run: Run, column: str, pass_: str) -> list[Kernel]:
    networks = ("alexnet", "deepbench")
    return [kernel for network in networks for kernel in run.setting.kernels(network, column, (pass_,))]


def _engines(run: Run, kernel: Kernel, case: str) -> Iterator[Record]:
    benchmark(run.bench, [kernel], "power_of_two")
    rows = run.bench.costs([kernel]).measurements[kernel]
    ran = [row for row in rows if row.time_ms is not None]
    sizes = sorted({row.micro_batch for row in ran}, reverse=True)
    details = {
        "problem": str(kernel.problem),
        "sizes": {size: _sum_up([row for row in ran if row.micro_batch == size]) for size in sizes},
    }
    yield Record("engines", case, "algorithms that run", len({row.algorithm for row in ran}), "", details)


def _sum_up(rows: Sequence[Measurement]) -> dict[str, Any]:
    """Sum up the measurements at one size: their number, the fastest, and the needs of tensor cores.

    Times are in ms, workspaces in bytes.
    """
    fastest = min(rows, key=_time)
    tensor = [row for row in rows if TENSOR in row.notes.split()]
    without = [row for row in rows if row not in tensor]
    return {
        "run": len(rows),
        "fastest": fastest.algorithm,
        "ms": fastest.time_ms,
        "workspace": fastest.workspace,
        "with_tensor_cores": len(tensor),
        "least_workspace_with_tensor_cores": min((row.workspace for row in tensor), default=None),
        "ms_without_tensor_cores": min(map(_time, without), default=None),
    }


def _time(row: Measurement) -> float:
    assert row.time_ms is not None
    return row.time_ms


def columns(run: Run) -> Iterator[Case]:
    """Yield the kernels, the most informative columns first (ORDER), and forward before the other passes.

    A kernel is measured in all columns of a group before the next kernel begins.
    """
    for prefix, select, names in ORDER:
        for pass_ in PASSES:
            for kernels in zip(*(select(run, column, pass_) for column in names), strict=True):
                for column, kernel in zip(names, kernels, strict=True):
                    yield Case(prefix + column, str(kernel), partial(_speedups, run, prefix + column, kernel))


def _networks(run: Run, column: str, pass_: str) -> list[Kernel]:
    resnet = [
        kernel
        for kernel in run.setting.kernels("resnet50", column, (pass_,))
        if run.setting.most_kernels or RESNET.fullmatch(kernel.name)
    ]
    alternating = zip_longest(run.setting.kernels("alexnet", column, (pass_,)), resnet)
    return [kernel for pair in alternating for kernel in pair if kernel is not None]


def _deepbench(run: Run, column: str, pass_: str) -> list[Kernel]:
    kernels = run.setting.kernels("deepbench", column, (pass_,))
    return [
        kernel for kernel in kernels if run.setting.most_kernels or kernel.problem.kernel in ((3, 3), (5, 5))
    ]


# Groups of columns in the order in which they are measured: a prefix of the bench's name, the kernels, the
# columns. bf16 comes late because it should equal fp16, except that fp16 does not divide filter gradients.
# NHWC comes last because it should gain nothing.
ORDER: tuple[tuple[str, Callable[[Run, str, str], list[Kernel]], tuple[str, ...]], ...] = (
    ("", _networks, ("fp16 NCHW", "TF32 NCHW")),
    ("", _networks, ("fp32 NCHW",)),
    ("DeepBench ", _deepbench, PAPER),
    ("", _networks, ("bf16 NCHW",)),
    ("", _networks, ("fp16 NHWC", "bf16 NHWC")),
    ("", _networks, ("TF32 NHWC", "fp32 NHWC")),
)


def _speedups(run: Run, column: str, kernel: Kernel) -> Iterator[Record]:
    """Run a kernel's configurations interleaved, and yield the speedup by division within each limit.

    It is relative to the best undivided algorithm within the same limit. Every second round decides whether
    the division is kept, and only the other rounds are reported. Otherwise the choice of the faster one would
    flatter the figure.
    """
    benchmark(run.bench, [kernel], "power_of_two")
    decisions = decide_within(run, kernel, (*LIMITS, None))
    unlimited = decisions[None].undivided
    wanted = [c for d in decisions.values() for c in (d.undivided, d.divided) if c is not None]
    times = run_whole(run.engine, kernel, wanted, ROUNDS)
    decides = {c: statistics.median(runs[::2]) for c, runs in times.items()}
    counts = {c: statistics.median(runs[1::2]) for c, runs in times.items()}
    for limit in (limit for limit in LIMITS if limit in decisions):
        undivided, chosen = decisions[limit].undivided, decisions[limit].divided
        if undivided is not None and decides[undivided] < decides[chosen]:
            chosen = undivided
        details = {
            "problem": str(kernel.problem),
            "undivided": undivided and _figures(undivided, counts),
            "chosen": _figures(chosen, counts),
            "unlimited": unlimited and _figures(unlimited, counts),
            "of_unlimited": unlimited and counts[chosen] / counts[unlimited],
        }
        speedup = None if undivided is None else counts[undivided] / counts[chosen]
        name = f"speedup within {limit // MIB} MiB"
        yield Record(column, str(kernel), name, speedup, "ratio", details)


def decide_within(run: Run, kernel: Kernel, limits: Iterable[int | None]) -> dict[int | None, Decision]:
    """Return the decision within each limit that fits; a limit of None always has one."""
    costs, decisions = run.bench.costs([kernel]), {}
    for limit in limits:
        try:
            (decisions[limit],) = decide(costs, "power_of_two", Limits(workspace=limit))
        except NothingFitsError:
            if limit is None:
                raise
    return decisions


def _figures(configuration: Configuration, ms: dict[Configuration, float]) -> dict[str, object]:
    by, workspace = str(configuration), configuration.workspace
    return {"by": by, "ms": ms[configuration], "workspace": workspace}
