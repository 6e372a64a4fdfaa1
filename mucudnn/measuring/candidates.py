"""The algorithms that can run a kernel. An engine lists them once, and the cache keeps its list."""

from collections.abc import Iterable, Sequence

from mucudnn._native import Candidate, Engine, Planner
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import SUCCESS, Listed, Machine, Measurement
from mucudnn.problems.kernels import Kernel


def candidates(
    source: Engine | Planner,
    machine: Machine,
    cache: Cache,
    kernel: Kernel,
    sizes: Sequence[int],
    *,
    keeps_failures: bool = True,
) -> dict[int, list[Listed]]:
    """Return the runnable algorithms of a kernel at each micro-batch size.

    For a size that the cache lacks, ask `source`, which must belong to `machine`, and cache its answer. An
    algorithm that cannot run is cached as a failed measurement, unless `keeps_failures` is False: it is then
    only absent from the list, which saves most of the rows.

    If an algorithm fails for a transient reason, such as a lack of memory, neither the failure nor the
    incomplete list is cached, so the next call asks the source again.
    """
    known = cache.enumerations(machine, kernel)
    missing = [size for size in sizes if size not in known]
    if not missing:
        return {size: known[size] for size in sizes}
    rows = cache.measurements(machine, kernel) if keeps_failures else ()
    measured = {(row.micro_batch, row.algorithm) for row in rows}
    complete, failures = dict[int, list[Listed]](), list[Measurement]()
    try:
        for size in missing:
            enumeration = source.enumerate(kernel.at(size))
            known[size] = runnable(enumeration)
            if keeps_failures:
                failures += [
                    Measurement(size, c.algorithm, c.status, c.workspace, c.notes)
                    for c in enumeration
                    if c.status != SUCCESS and c.is_lasting and (size, c.algorithm) not in measured
                ]
            if enumeration.is_complete:
                complete[size] = known[size]
    finally:  # even when interrupted, because listing takes seconds on a GPU
        cache.add_enumerations(machine, kernel, complete, failures)
    return {size: known[size] for size in sizes}


def runnable(enumeration: Iterable[Candidate]) -> list[Listed]:
    """Return the algorithms of an engine's list that can run."""
    return [Listed(c.algorithm, c.workspace, c.notes) for c in enumeration if c.status == SUCCESS]


def wastes_transform(kernel: Kernel, algorithm: str) -> bool:
    """Return whether an algorithm transforms a filter with a single tap, which saves no multiplications."""
    return "FFT" in algorithm and all(size == 1 for size in kernel.problem.kernel)
