"""Cliffs over all mini-batch sizes, equality, determinism, sums in fp32, and the tests that need a GPU."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

from bench.lib.record import Record
from bench.suites.core import sweep
from bench.suites.gpu import equality
from bench.suites.gpu.determinism import compare_processes
from bench.suites.gpu.processes import ROOT, ProgramError, run_captured
from bench.suites.gpu.programs import LAUNCHES, call
from bench.suites.gpu.run import Case, Run
from bench.suites.gpu.setting import COLUMNS, NCHW
from mucudnn._native import host_library
from mucudnn.measuring.benchmark import benchmark
from mucudnn.problems.kernels import PASSES, Flags, Kernel, read_kernels

STOCK = next(iter(LAUNCHES))
SUITE = sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
LEAST_SECONDS_OF_SUITE = 40.0  # a test file may take this long, even if the part has less time left
SIZES = 64  # mini-batch sizes that one process of PyTorch sweeps


def sweeping(run: Run) -> Iterator[Case]:
    """Yield sweeps of mini-batch sizes: stock PyTorch at all sizes, the engine at those near powers of 2."""
    most = max(run.setting.swept_batches)
    # Several processes share the sizes, so that a stopped one costs little. Neighbours share the size between
    # them, so that none misses a jump there.
    for first, last in pairwise((1, *range(SIZES, most, SIZES), most)):
        case = f"PyTorch, stock, N={first} to {last}"
        yield Case("sweep", case, partial(_program_sweep, run, range(first, last + 1), case))
    (kernel,) = read_kernels(
        run.setting.swept.descriptor, Flags(max(run.setting.swept_batches)), ("forward",)
    )
    yield Case("sweep", str(kernel), partial(_engine_sweep, run, kernel))


def _engine_sweep(run: Run, kernel: Kernel) -> Iterator[Record]:
    return sweep.run(run.bench, kernel, run.setting.swept_batches)


def _program_sweep(run: Run, sizes: range, case: str) -> Iterator[Record]:
    convolution = run.setting.swept
    answer = call(
        run, STOCK, "bench.suites.gpu.torch_convolution",
        "--batches", ",".join(map(str, sizes)), "--runs", "3",
        "--channels", str(convolution.channels), "--size", str(convolution.size), "--padding", "1",
    )  # fmt: skip
    times = {int(size): ms for size, ms in answer["ms"].items()}
    details = {"at": sweep.cliffs_of(times), "ms": times}
    yield Record("sweep", case, "cliffs", len(details["at"]), "", details)


def results(run: Run) -> Iterator[Case]:
    """Yield the checks of results: sums of slices in fp32, errors in each type, equality over processes."""
    yield Case("sums", "16-bit slices in fp32", partial(_sums, run))
    for column in NCHW:
        for pass_ in PASSES:
            kernel, case = _kernel(run, column, pass_), f"{column}, {pass_}"
            yield Case("equality", case, partial(_equality, run, kernel, case))
    for column in NCHW:
        for pass_ in PASSES:
            kernel, case = _kernel(run, column, pass_), f"{column}, {pass_}"
            yield Case("determinism", case, partial(_determinism, run, kernel, case))


def _kernel(run: Run, column: str, pass_: str) -> Kernel:
    return read_kernels(run.setting.checked, Flags(None, *COLUMNS[column]), (pass_,))[0]


def _equality(run: Run, kernel: Kernel, case: str) -> Iterable[Record]:
    return equality.run(run.bench, kernel, case)


def _sums(run: Run) -> Iterator[Record]:
    library = ("--library", host_library()) if run.setting.engine == "host" else ()
    found = call(run, STOCK, "bench.suites.gpu.torch_sums", *library)["sums"]
    ways = [way for way, answer in found.items() if answer == "fp32"]
    yield Record("sums", "16-bit slices in fp32", "calls that sum in fp32", len(ways), "", found)


def _determinism(run: Run, kernel: Kernel, case: str) -> Iterator[Record]:
    benchmark(run.bench, [kernel], "power_of_two", comparing=False)
    yield compare_processes(run.setting.engine, run.cache.path, kernel, case)


def suite(run: Run) -> Iterator[Case]:
    """Yield the files of `pytest -m gpu tests/gpu`, each to run in a process of its own."""
    for file in SUITE:
        yield Case("suite", file.name, partial(_suite, run, file))


def _suite(run: Run, file: Path) -> Iterator[Record]:
    # Other libraries' warnings must not fail the tests (-W default), nor may other projects' plugins load.
    command = [
        sys.executable, "-m", "pytest", "-q", "-m", "gpu", "-W", "default", "-p", "no:cacheprovider",
        str(file),
    ]  # fmt: skip
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    if run.setting.engine == "host":
        environment["TEST_GPU_ENGINE"] = "host"
    tests = run_captured(command, max(run.seconds_left, LEAST_SECONDS_OF_SUITE), environment)
    lines = tests.stdout.strip().splitlines() or [tests.stderr.strip()[-200:]]
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    outcome = re.search(r"\d+ (passed|failed|skipped|deselected|error)", lines[-1])
    if outcome is None:
        raise ProgramError(f"pytest's exit code {tests.returncode}: {lines[-1]}")
    details = {"outcome": lines[-1], "failed": failed}
    passed = re.search(r"(\d+) passed", lines[-1])
    yield Record("suite", file.name, "tests passed", int(passed[1]) if passed else 0, "", details)
