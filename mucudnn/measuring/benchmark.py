"""The measurements that the cache lacks, announced and made."""

from collections.abc import Sequence
from functools import partial

from mucudnn.costs.table import CostTable
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.measure import find_missing, measure
from mucudnn.problems.kernels import Kernel
from mucudnn.sizes import format_size


def benchmark(
    bench: Bench,
    kernels: Sequence[Kernel],
    policy: str,
    *,
    limits: Sequence[int | None] = (None,),
    undivided: bool = False,
) -> CostTable:
    """Make the measurements that the cache lacks, and return the costs of the kernels.

    First tell the listener their number and memory. Algorithms that need more workspace than the last of the
    ascending `limits` are not measured. A race looks for a choice within each limit and, with `undivided`,
    for the best undivided algorithm.
    """

    def work() -> CostTable:
        missing = find_missing(bench, kernels, policy, limits, undivided=undivided)
        if missing.tasks:
            most = "" if bench.runner.is_complete else "up to "
            measured = list(dict.fromkeys(task.kernel for task in missing.tasks))
            subject = str(measured[0]) if len(measured) == 1 else f"{len(measured)} kernels"
            times = f"{most}{len(missing.tasks)} times for {subject}"
            rows = partial(bench.cache.measurements, bench.machine)
            disturbed = sum(len(rows(kernel)) - len(rows(kernel, due=False)) for kernel in measured)
            if disturbed:
                times += f", {disturbed} of them again because other programs disturbed the last run"
            bench.listener.message(f"Measuring {times}, in about {format_size(missing.memory)} of memory")
        measure(bench, missing)
        return bench.costs(kernels)

    return bench.cache.consistently(work)
