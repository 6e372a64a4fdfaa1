"""Speedups of whole kernels by division within each limit, for each column of data type, layout and math.

They are relative to the best undivided algorithm within the same limit. The details have the time relative to
the fastest undivided algorithm without a limit.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterator
from functools import partial
from itertools import zip_longest

from bench.lib.record import Record
from bench.suites.core.division import run_whole
from bench.suites.gpu.run import Case, Run
from bench.suites.gpu.setting import MIB
from mucudnn.errors import NothingFitsError
from mucudnn.measuring.benchmark import benchmark
from mucudnn.plans.decide import Decision, Limits, decide
from mucudnn.problems.kernels import PASSES, Kernel
from mucudnn.solver import Configuration

LIMITS = tuple(mib * MIB for mib in (8, 64, 128, 512))
ROUNDS = 10
# The measured kernels of ResNet-50: the first layer, and conv2 and conv3 of each stage's first two blocks.
RESNET = re.compile(r"resnet50:layer[1-4]\.[01]\.conv[23]|resnet50:conv1")
# The columns of DeepBench, the benchmark of the μ-cuDNN paper. The paper has fp32 only.
PAPER = ("fp32 NCHW", "TF32 NCHW", "fp16 NCHW")


def cases(run: Run) -> Iterator[Case]:
    """Yield the kernels, the most telling columns first (TURNS), and forward before the other passes.

    A kernel is measured in all columns of a turn before the next kernel begins.
    """
    for name, kernels, columns in TURNS:
        for pass_ in PASSES:
            yield from _in_turns(run, {name + column: kernels(run, column, pass_) for column in columns})


def _in_turns(run: Run, found: dict[str, list[Kernel]]) -> Iterator[Case]:
    for same in zip(*found.values(), strict=True):
        for column, kernel in zip(found, same, strict=True):
            yield Case(column, str(kernel), partial(_kernel, run, column, kernel))


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
TURNS: tuple[tuple[str, Callable[[Run, str, str], list[Kernel]], tuple[str, ...]], ...] = (
    ("", _networks, ("fp16 NCHW", "TF32 NCHW")),
    ("", _networks, ("fp32 NCHW",)),
    ("DeepBench ", _deepbench, PAPER),
    ("", _networks, ("bf16 NCHW",)),
    ("", _networks, ("fp16 NHWC", "bf16 NHWC")),
    ("", _networks, ("TF32 NHWC", "fp32 NHWC")),
)


def _kernel(run: Run, column: str, kernel: Kernel) -> Iterator[Record]:
    """Run a kernel's configurations in turns, and yield the speedup within each limit.

    Every second round decides whether the division is kept, and only the other rounds are reported. Otherwise
    the choice of the faster one would flatter the figure.
    """
    decisions = decide_within_limits(run, kernel)
    unlimited = decisions[None].undivided
    wanted = [c for d in decisions.values() for c in (d.undivided, d.divided) if c is not None]
    times = run_whole(run.engine, kernel, wanted, ROUNDS)
    decides = {c: statistics.median(runs[::2]) for c, runs in times.items()}
    counts = {c: statistics.median(runs[1::2]) for c, runs in times.items()}
    for limit in LIMITS:
        if limit not in decisions:
            continue
        undivided, divided = decisions[limit].undivided, decisions[limit].divided
        chosen = divided
        if undivided is not None and decides[undivided] < decides[divided]:
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


def decide_within_limits(run: Run, kernel: Kernel) -> dict[int | None, Decision]:
    """Return the decision within each limit and without one (None); limits that nothing fits are left out."""
    benchmark(run.bench, [kernel], "power_of_two", comparing=False)
    costs = run.bench.costs([kernel])
    decisions: dict[int | None, Decision] = {}
    for limit in (*LIMITS, None):
        try:
            (decisions[limit],) = decide(costs, "power_of_two", Limits(workspace=limit))
        except NothingFitsError:
            if limit is None:
                raise
    return decisions


def _figures(configuration: Configuration, ms: dict[Configuration, float]) -> dict[str, object]:
    by, workspace = str(configuration), configuration.workspace
    return {"by": by, "ms": ms[configuration], "workspace": workspace}
