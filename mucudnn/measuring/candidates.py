"""The candidates of a kernel: an engine is asked for them once, and the cache keeps its answer."""

from collections.abc import Sequence

from mucudnn._native import Engine, Planner
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

    They come from the cache. For a size that the cache lacks, `source` is asked, which must belong to
    `machine`, and the cache keeps the answer; an algorithm that cannot run is kept as a failed measurement.
    Without `keeps_failures` it is only missing in the list, which saves most rows.

    An algorithm that fails for a passing reason, such as a lack of memory, is not kept as failed. The list
    is then incomplete and not kept either, so that the next call asks the source again.
    """
    known = cache.enumerations(machine, kernel)
    missing = [size for size in sizes if size not in known]
    if missing:
        known |= _ask(source, machine, cache, kernel, missing, keeps_failures)
    return {size: known[size] for size in sizes}


def transforms_in_vain(kernel: Kernel, algorithm: str) -> bool:
    """Return whether an algorithm transforms a filter of one tap, which saves no multiplication."""
    return "FFT" in algorithm and all(size == 1 for size in kernel.problem.kernel)


def _ask(
    source: Engine | Planner, machine: Machine, cache: Cache, kernel: Kernel, sizes: Sequence[int],
    keeps_failures: bool,
) -> dict[int, list[Listed]]:  # fmt: skip
    rows = cache.measurements(machine, kernel) if keeps_failures else ()
    measured = {(row.micro_batch, row.algorithm) for row in rows}
    listed, complete, failures = dict[int, list[Listed]](), dict[int, list[Listed]](), list[Measurement]()
    try:
        for size in sizes:
            enumeration = source.enumerate(kernel.at(size))
            listed[size] = [
                Listed(c.algorithm, c.workspace, c.notes) for c in enumeration if c.status == SUCCESS
            ]
            failures += [
                Measurement(size, c.algorithm, c.status, c.workspace, c.notes)
                for c in enumeration
                if c.status != SUCCESS and c.is_lasting and (size, c.algorithm) not in measured
            ]
            if enumeration.is_complete:
                complete[size] = listed[size]
    finally:  # after an interruption too: asking takes seconds on a GPU
        cache.add_enumerations(machine, kernel, complete, failures if keeps_failures else ())
    return listed
