"""The jump in time between 63 and 64 samples (pytorch#128936), with unlimited and with little workspace.

Stock PyTorch and PyTorch under the drop-in run it in processes of their own, then the engine runs it alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from itertools import product

from bench.lib.record import Record
from bench.suites.core.division import run_whole
from bench.suites.gpu.programs import LAUNCHES, call
from bench.suites.gpu.run import Case, Run
from bench.suites.gpu.setting import MIB
from mucudnn.errors import NothingFitsError
from mucudnn.measuring.benchmark import benchmark
from mucudnn.plans.decide import Limits, decide
from mucudnn.problems.kernels import Flags, read_kernels
from mucudnn.solver import Configuration

FREE = {"512 MiB of workspace": 512, "any workspace": None}
RUNS, ROUNDS = 3, 5


def cases(run: Run) -> Iterator[Case]:
    """Yield the programs first, because users see them, and N=64 before N=63; then the engine alone."""
    for batch in reversed(run.setting.cliff_batches):
        for free, launch in product(FREE, LAUNCHES):
            case = f"N={batch}, {free}, {launch}"
            yield Case("cliff", case, partial(_in_pytorch, run, launch, batch, free, case))
    for batch in reversed(run.setting.cliff_batches):
        case = f"N={batch}, the engine alone"
        yield Case("cliff", case, partial(_by_engine, run, batch, case))


def _in_pytorch(run: Run, launch: str, batch: int, free: str, case: str) -> Iterator[Record]:
    convolution, mib = run.setting.cliff, FREE[free]
    answer = call(
        run, launch, "bench.suites.gpu.torch_convolution", "--batches", str(batch), "--runs", str(RUNS),
        "--channels", str(convolution.channels), "--size", str(convolution.size),
        "--stride", str(convolution.stride), *(() if mib is None else ("--free-mib", str(mib))),
        share="cliff",
    )  # fmt: skip
    (ms,) = answer.pop("ms").values()
    yield Record("cliff", case, "time of a call", ms, "ms", answer)


def _by_engine(run: Run, batch: int, case: str) -> Iterator[Record]:
    (kernel,) = read_kernels(run.setting.cliff.descriptor, Flags(batch), ("forward",))
    benchmark(run.bench, [kernel], "power_of_two", comparing=False)
    costs = run.bench.costs([kernel])
    found: dict[str, Configuration] = {}
    for free, mib in FREE.items():
        limits = Limits(workspace=None if mib is None else mib * MIB)
        try:
            (decision,) = decide(costs, "power_of_two", limits)
        except NothingFitsError:  # this limit has no figure
            continue
        if decision.undivided is not None:
            found[f"undivided, {free}"] = decision.undivided
        found[f"divided, {free}"] = decision.divided
    times = run_whole(run.engine, kernel, found.values(), ROUNDS)
    for metric, configuration in found.items():
        details = {"by": str(configuration), "workspace": configuration.workspace}
        ms = statistics.median(times[configuration])
        yield Record("cliff", case, metric, ms, "ms", details)
