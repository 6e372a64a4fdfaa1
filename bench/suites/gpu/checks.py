"""The errors of divided kernels against fp64, relative to those of undivided ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial

import numpy as np
import numpy.typing as npt

from bench.lib.record import Record
from bench.suites.gpu.run import Case, Run
from bench.suites.gpu.setting import COLUMNS, NCHW
from mucudnn._native import Engine, EngineError, Memory, refusal_of_slices
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.buffers import Tensors, allocate_workspace, extent
from mucudnn.measuring.candidates import runnable
from mucudnn.problems.kernels import PASSES, Kernel
from mucudnn.problems.sources import Flags, read_kernels
from mucudnn.solver import Configuration, MicroConfiguration, Slices

SLICES = (2, 4, 8)
_RESULTS = {"forward": "y", "backward_data": "x", "backward_filter": "w"}


def results(run: Run) -> Iterator[Case]:
    """Yield a kernel in each type and pass."""
    for column in NCHW:
        for kernel in read_kernels(run.setting.checked, Flags(None, *COLUMNS[column]), PASSES):
            case = f"{column}, {kernel.pass_}"
            yield Case("equality", case, partial(compare_errors, run.bench, kernel, case))


def compare_errors(bench: Bench, kernel: Kernel, case: str) -> Iterator[Record]:
    """Yield the error against fp64 in 2, 4 and 8 slices over that undivided, with the fastest algorithm.

    The algorithm must run on the whole mini-batch and on the slices. If a division is refused or nothing can
    be compared, the record has no value, and its details say why.
    """
    benchmark(bench, [kernel], "power_of_two")
    parts: dict[int, dict[str, MicroConfiguration]] = {}
    for row in bench.costs([kernel]).measurements[kernel]:
        if (part := row.part()) is not None:
            parts.setdefault(row.micro_batch, {})[row.algorithm] = part
    whole = parts[kernel.mini_batch]
    for slices in SLICES:
        metric = f"error in {slices} slices over that undivided"
        details: dict[str, str | float] = {"problem": str(kernel.problem)}
        part_of = parts.get(kernel.mini_batch // slices, {})
        ratio = None
        if refusal := refusal_of_slices(kernel, slices):
            details["why"] = refusal.partition(": ")[2]
        elif not (both := whole.keys() & part_of.keys()):
            details["why"] = "no algorithm runs at both sizes"
        else:
            algorithm = min(both, key=lambda name: whole[name].time_ms)
            divided = Configuration((part_of[algorithm],) * slices)
            undivided = Configuration((whole[algorithm],))
            errors = measure_errors(bench.engine, kernel, [divided, undivided])
            if errors is None:
                details["why"] = "nothing runs in fp64, or the errors have no ratio"
            else:
                ratio = errors[0] / errors[1]
                details |= {"error": errors[0], "undivided_error": errors[1], "algorithm": algorithm}
        yield Record("equality", case, metric, ratio, "ratio", details)


def measure_errors(
    engine: Engine, kernel: Kernel, configurations: Sequence[Configuration]
) -> list[float] | None:
    """Return the normalised L2 error of each configuration against fp64 on the same values.

    Return None if nothing runs in fp64, or if a sum is not finite or exact.
    """
    tensors = Tensors.random(engine, kernel.problem, extent(kernel.problem))
    expected = _run_in_fp64(engine, kernel, tensors)
    if expected is None:
        return None
    results = (_run(engine, kernel, each.slices, tensors) for each in configurations)
    errors = [float(np.linalg.norm(values - expected) / np.linalg.norm(expected)) for values in results]
    return errors if np.isfinite(errors).all() and all(errors) else None


def _run_in_fp64(engine: Engine, kernel: Kernel, tensors: Tensors) -> npt.NDArray[np.float64] | None:
    """Return the result of the first algorithm that works, because some fail although they are listed."""
    problem = kernel.problem.replace(data_type="f64", math="default")
    exact, copies = Kernel(problem, kernel.pass_), Tensors.allocated(engine, extent(problem))
    for name in "xwy":
        values = getattr(tensors, name).read(kernel.problem.data_type, getattr(problem, f"{name}_elements"))
        getattr(copies, name).write("f64", values)
    for candidate in sorted(runnable(engine.enumerate(exact)), key=lambda listed: listed.workspace):
        with suppress(EngineError):
            return _run(engine, exact, ((problem.mini_batch, candidate.algorithm),), copies)
    return None


def _run(engine: Engine, kernel: Kernel, slices: Slices, tensors: Tensors) -> npt.NDArray[np.float64]:
    division = engine.prepare(kernel, slices)
    division.execute(tensors.x, tensors.w, tensors.y, allocate_workspace(engine, division.workspace))
    name, problem = _RESULTS[kernel.pass_], kernel.problem
    result: Memory = getattr(tensors, name)
    return result.read(problem.data_type, getattr(problem, f"{name}_elements"))
