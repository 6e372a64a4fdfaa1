"""Jumps of the time at mini-batch sizes: that of pytorch#128936 between 63 and 64 samples, and a sweep.

Stock PyTorch and PyTorch under the drop-in run in processes of their own, then the engine runs alone.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from functools import partial
from itertools import pairwise, product
from typing import Any

from bench.lib.host import run_whole
from bench.lib.record import Record
from bench.suites.core import sweep
from bench.suites.gpu.kernels import decide_within
from bench.suites.gpu.launching import LAUNCHES, STOCK, call
from bench.suites.gpu.run import Case, Run
from bench.suites.gpu.setting import MIB, Convolution
from mucudnn.measuring.benchmark import benchmark
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.sources import Flags, read_kernels
from mucudnn.solver import Configuration

FREE = {"512 MiB of workspace": 512, "any workspace": None}
ROUNDS = 5
SIZES = 64  # mini-batch sizes that one process of PyTorch sweeps


def cliff(run: Run) -> Iterator[Case]:
    """Yield the programs first, because users see them, and N=64 before N=63; then the engine alone."""
    for batch in reversed(run.setting.cliff_batches):
        for free, launch in product(FREE, LAUNCHES):
            case = f"N={batch}, {free}, {launch}"
            yield Case("cliff", case, partial(_in_pytorch, run, launch, batch, free, case))
    for batch in reversed(run.setting.cliff_batches):
        case = f"N={batch}, the engine alone"
        yield Case("cliff", case, partial(_by_engine, run, batch, case))


def _time(
    run: Run, launch: str, convolution: Convolution, batches: str, *more: str, share: str = ""
) -> dict[str, Any]:
    """Return the answer of a PyTorch program that times a convolution."""
    return call(
        run, launch, "bench.suites.gpu.torch_convolution", "--batches", batches, "--runs", "3",
        "--channels", str(convolution.channels), "--size", str(convolution.size),
        "--stride", str(convolution.stride), "--padding", str(convolution.padding), *more, share=share,
    )  # fmt: skip


def _in_pytorch(run: Run, launch: str, batch: int, free: str, case: str) -> Iterator[Record]:
    memory = () if FREE[free] is None else ("--free-mib", str(FREE[free]))
    answer = _time(run, launch, run.setting.cliff, str(batch), *memory, share="cliff")
    (ms,) = answer.pop("ms").values()
    yield Record("cliff", case, "time of a call", ms, "ms", answer)


def _by_engine(run: Run, batch: int, case: str) -> Iterator[Record]:
    (kernel,) = read_kernels(run.setting.cliff.descriptor, Flags(batch), ("forward",))
    benchmark(run.bench, [kernel], "power_of_two", comparing=False)
    limits = {free: None if mib is None else mib * MIB for free, mib in FREE.items()}
    ways: dict[str, Configuration] = {}
    for free, decision in decide_within(run, kernel, limits).items():
        if decision.undivided is not None:
            ways[f"undivided, {free}"] = decision.undivided
        ways[f"divided, {free}"] = decision.divided
    times = run_whole(run.engine, kernel, ways.values(), ROUNDS)
    for metric, configuration in ways.items():
        details = {"by": str(configuration), "workspace": configuration.workspace}
        yield Record("cliff", case, metric, statistics.median(times[configuration]), "ms", details)


def sweeping(run: Run) -> Iterator[Case]:
    """Yield sweeps of mini-batch sizes: stock PyTorch at all sizes, the engine at those near powers of 2."""
    most = max(run.setting.swept_batches)
    # Several processes share the sizes, so that a stopped one costs little. Neighbours share the size between
    # them, so that none misses a jump there.
    for first, last in pairwise((1, *range(SIZES, most, SIZES), most)):
        case = f"PyTorch, stock, N={first} to {last}"
        yield Case("sweep", case, partial(_program_sweep, run, range(first, last + 1), case))
    (kernel,) = read_kernels(run.setting.swept.descriptor, Flags(most), ("forward",))
    yield Case("sweep", str(kernel), partial(_engine_sweep, run, kernel))


def _engine_sweep(run: Run, kernel: Kernel) -> Iterator[Record]:
    return sweep.run(run.bench, kernel, run.setting.swept_batches)


def _program_sweep(run: Run, sizes: range, case: str) -> Iterator[Record]:
    answer = _time(run, STOCK, run.setting.swept, ",".join(map(str, sizes)))
    times = {int(size): ms for size, ms in answer["ms"].items()}
    details = {"at": sweep.cliffs_of(times), "ms": times}
    yield Record("sweep", case, "cliffs", len(details["at"]), "", details)
