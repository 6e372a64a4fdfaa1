"""The errors of divided kernels against fp64, relative to those of undivided ones."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from bench.lib.record import Record
from bench.suites.gpu.run import Case, Run
from bench.suites.gpu.setting import COLUMNS, NCHW
from mucudnn._native import most_slices
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.compare import compare
from mucudnn.problems.kernels import PASSES, Kernel
from mucudnn.problems.sources import Flags, read_kernels
from mucudnn.solver import Configuration, MicroConfiguration

SLICES = (2, 4, 8)


def results(run: Run) -> Iterator[Case]:
    """Yield a kernel in each type and pass."""
    for column in NCHW:
        for kernel in read_kernels(run.setting.checked, Flags(None, *COLUMNS[column]), PASSES):
            case = f"{column}, {kernel.pass_}"
            yield Case("equality", case, partial(_equality, run, kernel, case))


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
