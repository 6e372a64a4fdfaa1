"""The errors of divided kernels against fp64, over those of the same algorithm undivided."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from bench.lib.record import Record
from mucudnn._native import most_slices
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.compare import compare
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration, MicroConfiguration

SLICES = (2, 4, 8)


def run(bench: Bench, kernel: Kernel, case: str) -> Iterator[Record]:
    """Yield the ratio of the two errors for 2, 4 and 8 slices, each with the kernel's fastest algorithm.

    The algorithm must run on the whole mini-batch and on the slices. If a division is refused or nothing can
    be compared, the record has no value, and its details say why.
    """
    benchmark(bench, [kernel], "power_of_two", comparing=False)
    rows = bench.costs([kernel]).measurements[kernel]
    at: dict[int, dict[str, MicroConfiguration]] = {}
    for row in rows:
        if (part := row.part()) is not None:
            at.setdefault(row.micro_batch, {})[row.algorithm] = part
    batch = kernel.mini_batch
    for slices in SLICES:
        metric = f"error in {slices} slices over that undivided"
        accumulator = bench.engine.accumulator_size(kernel, slices)
        if accumulator is None:
            may_overflow = slices > most_slices(kernel)
            why = "a slice may overflow" if may_overflow else "the slices cannot be summed in fp32"
            yield Record("equality", case, metric, None, "ratio", {"why": why})
            continue
        both = at[batch].keys() & at.get(batch // slices, {}).keys()
        if not both:
            yield Record("equality", case, metric, None, "ratio", {"why": "no algorithm runs at both sizes"})
            continue
        algorithm = min(both, key=lambda name: at[batch][name].time_ms)
        whole = Configuration((at[batch][algorithm],))
        part = at[batch // slices][algorithm]
        part = replace(part, workspace=part.workspace + accumulator)
        yield _compared(bench, kernel, whole, Configuration((part,) * slices), case, metric)


def _compared(
    bench: Bench, kernel: Kernel, whole: Configuration, divided: Configuration, case: str, metric: str
) -> Record:
    details: dict[str, object] = {"problem": str(kernel.problem), "algorithm": whole.parts[0].algorithm}
    found = compare(bench, kernel, whole, divided)
    if found.error is None or found.undivided_error is None:
        details["why"] = "nothing runs in fp64, or the sums are not finite"
        return Record("equality", case, metric, None, "ratio", details)
    details |= {"error": found.error, "undivided_error": found.undivided_error}
    if found.undivided_error == 0:  # no ratio exists: the divided error must be 0 too
        return Record("equality", case, metric, 1.0 if found.error == 0 else None, "ratio", details)
    return Record("equality", case, metric, found.error / found.undivided_error, "ratio", details)
