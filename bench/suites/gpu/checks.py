"""Checks of results: errors of divided kernels, equality over processes, sums in fp32, and the GPU's tests.

usage: python -m bench.suites.gpu.checks DESCRIPTOR PASS ENGINE CACHE    prints hashes of a result
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.lib.record import Record
from bench.suites.gpu.launching import STOCK, call
from bench.suites.gpu.processes import ROOT, ProgramError, run_captured
from bench.suites.gpu.run import Case, Run
from bench.suites.gpu.setting import COLUMNS, NCHW
from mucudnn._native import host_library, most_slices
from mucudnn.costs.cache import Cache
from mucudnn.costs.table import CostTable
from mucudnn.measuring.bench import Bench, machine_of
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.buffers import Tensors, allocate_workspace, extent
from mucudnn.measuring.compare import compare
from mucudnn.measuring.engines import open_engine
from mucudnn.plans.decide import Limits, decide
from mucudnn.problems.kernels import PASSES, Kernel
from mucudnn.problems.sources import Flags, read_kernels
from mucudnn.solver import Configuration, MicroConfiguration

SUITE = sorted((ROOT / "tests" / "gpu").glob("test_*.py"))
LEAST_SECONDS_OF_SUITE = 40.0  # a test file may take this long, even if the part has less time left
SLICES = (2, 4, 8)
LIMIT = 64 * 2**20
PROCESSES, RUNS = 3, 2


def results(run: Run) -> Iterator[Case]:
    """Yield the checks of results: sums of slices in fp32, errors in each type, equality over processes."""
    yield Case("sums", "16-bit slices in fp32", partial(_sums, run))
    for bench, check in (("equality", _equality), ("determinism", _determinism)):
        for column in NCHW:
            for kernel in read_kernels(run.setting.checked, Flags(None, *COLUMNS[column]), PASSES):
                case = f"{column}, {kernel.pass_}"
                yield Case(bench, case, partial(check, run, kernel, case))


def _sums(run: Run) -> Iterator[Record]:
    library = ("--library", host_library()) if run.setting.engine == "host" else ()
    sums = call(run, STOCK, "bench.suites.gpu.torch_sums", *library)["sums"]
    ways = [way for way, answer in sums.items() if answer == "fp32"]
    yield Record("sums", "16-bit slices in fp32", "calls that sum in fp32", len(ways), "", sums)


def _equality(run: Run, kernel: Kernel, case: str) -> Iterator[Record]:
    return compare_errors(run.bench, kernel, case)


def compare_errors(bench: Bench, kernel: Kernel, case: str) -> Iterator[Record]:
    """Yield the error against fp64 in 2, 4 and 8 slices over that undivided, with the fastest algorithm.

    The algorithm must run on the whole mini-batch and on the slices. If a division is refused or nothing can
    be compared, the record has no value, and its details say why.
    """
    benchmark(bench, [kernel], "power_of_two", comparing=False)
    parts: dict[int, dict[str, MicroConfiguration]] = {}
    for row in bench.costs([kernel]).measurements[kernel]:
        if (part := row.part()) is not None:
            parts.setdefault(row.micro_batch, {})[row.algorithm] = part
    whole = parts[kernel.mini_batch]
    for slices in SLICES:
        metric, details = f"error in {slices} slices over that undivided", {"problem": str(kernel.problem)}
        part_of = parts.get(kernel.mini_batch // slices, {})
        accumulator, ratio = bench.engine.accumulator_size(kernel, slices), None
        if accumulator is None:
            may_overflow = slices > most_slices(kernel)
            why = "a slice may overflow" if may_overflow else "the slices cannot be summed in fp32"
            details["why"] = why
        elif not (both := whole.keys() & part_of.keys()):
            details["why"] = "no algorithm runs at both sizes"
        else:
            algorithm = min(both, key=lambda name: whole[name].time_ms)
            part = replace(part_of[algorithm], workspace=part_of[algorithm].workspace + accumulator)
            divided = Configuration((part,) * slices)
            ratio, more = _error_ratio(bench, kernel, Configuration((whole[algorithm],)), divided)
            details |= more | {"algorithm": algorithm}
        yield Record("equality", case, metric, ratio, "ratio", details)


def _error_ratio(
    bench: Bench, kernel: Kernel, whole: Configuration, divided: Configuration
) -> tuple[float | None, dict[str, Any]]:
    errors, _ = compare(bench, kernel, whole, divided)
    if errors.error is None or errors.undivided_error is None:
        return None, {"why": "nothing runs in fp64, or the sums are not finite"}
    details = {"error": errors.error, "undivided_error": errors.undivided_error}
    if errors.undivided_error == 0:  # no ratio exists: the divided error must be 0 too
        return 1.0 if errors.error == 0 else None, details
    return errors.error / errors.undivided_error, details


def _determinism(run: Run, kernel: Kernel, case: str) -> Iterator[Record]:
    benchmark(run.bench, [kernel], "power_of_two", comparing=False)
    yield count_distinct_results(run.setting.engine, run.cache.path, kernel, case)


def count_distinct_results(engine: str, cache: Path, kernel: Kernel, case: str) -> Record:
    """Return the number of different results that PROCESSES processes compute; the aim is 1.

    Each process reads the same measurements from a cache, so that different results are not due to different
    times. The record's details name the configurations that the processes chose.
    """
    module = (sys.executable, "-m", "bench.suites.gpu.checks")
    command = [*module, str(kernel.problem), kernel.pass_, engine, str(cache)]
    answers: list[dict[str, Any]] = []
    for _ in range(PROCESSES):
        printed = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
        if printed.returncode:
            raise RuntimeError(printed.stderr)
        answers.append(json.loads(printed.stdout))
    different = {digest for answer in answers for digest in answer["digests"]}
    choices = sorted({answer["chosen"] for answer in answers})
    details = {"chosen": choices, "notes": answers[0]["notes"], "runs": PROCESSES * RUNS}
    return Record("determinism", case, f"results of {PROCESSES} processes", len(different), "", details)


def print_hashes(descriptor: str, pass_: str, engine_name: str, cache_path: str) -> None:
    """Decide from the cache, run the configuration RUNS times, and print one line of JSON with the hashes."""
    engine = open_engine(engine_name, 1)
    (kernel,) = read_kernels(descriptor, Flags(), (pass_,))
    problem = kernel.problem
    with Cache.read_only(Path(cache_path)) as cache:
        costs = CostTable.read(cache, machine_of(engine), [kernel])
    (decision,) = decide(costs, "power_of_two", Limits(workspace=LIMIT))
    chosen = decision.divided
    tensors = Tensors.random(engine, problem, extent(problem))
    output, count = {
        "forward": (tensors.y, problem.y_elements),
        "backward_data": (tensors.x, problem.x_elements),
        "backward_filter": (tensors.w, problem.w_elements),
    }[kernel.pass_]
    workspace = allocate_workspace(engine, engine.prepare(kernel, chosen.slices).workspace)
    digests = []
    for _ in range(RUNS):
        engine.execute(kernel, chosen.slices, tensors.x, tensors.w, tensors.y, workspace)
        digests.append(hashlib.sha256(output.read(problem.data_type, count).tobytes()).hexdigest())
    used = {(part.micro_batch, part.algorithm) for part in chosen.parts}
    rows = costs.measurements[kernel]
    notes = sorted({row.notes for row in rows if (row.micro_batch, row.algorithm) in used})
    print(json.dumps({"chosen": str(chosen), "notes": notes, "digests": digests}))


def suite(run: Run) -> Iterator[Case]:
    """Yield the files of `pytest -m gpu tests/gpu`, each to run in a process of its own."""
    for file in SUITE:
        yield Case("suite", file.name, partial(_suite, run, file))


def _suite(run: Run, file: Path) -> Iterator[Record]:
    # Other libraries' warnings must not fail the tests (-W default), nor may other projects' plugins load, so
    # that pytest does not know our usual options for parallel tests (-o addopts=).
    flags = ("-q", "-o", "addopts=", "-m", "gpu", "-W", "default", "-p", "no:cacheprovider")
    command = [sys.executable, "-m", "pytest", *flags, str(file)]
    environment = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    if run.setting.engine == "host":
        environment["TEST_GPU_ENGINE"] = "host"
    tests = run_captured(command, max(run.seconds_left, LEAST_SECONDS_OF_SUITE), environment)
    lines = tests.stdout.strip().splitlines() or [tests.stderr.strip()[-200:]]
    if re.search(r"\d+ (passed|failed|skipped|deselected|error)", lines[-1]) is None:
        errors = [line for line in tests.stderr.splitlines() if "error:" in line]
        raise ProgramError(f"pytest's exit code {tests.returncode}: {(errors or lines)[-1]}")
    failed = [line for line in lines if line.startswith(("FAILED", "ERROR"))]
    passed = re.search(r"(\d+) passed", lines[-1])
    details = {"outcome": lines[-1], "failed": failed}
    yield Record("suite", file.name, "tests passed", int(passed[1]) if passed else 0, "", details)


if __name__ == "__main__":
    print_hashes(*sys.argv[1:])
