"""The measurements that the cache lacks, announced and made."""

from collections.abc import Sequence

from mucudnn.forks import no_fork
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.measure import find_missing, measure
from mucudnn.problems.kernels import Kernel


def benchmark(
    bench: Bench,
    kernels: Sequence[Kernel],
    policy: str,
    *,
    comparing: bool = False,
    limits: Sequence[int | None] = (None,),
    undivided: bool = False,
) -> None:
    """Make the measurements that the cache lacks.

    First forecast their time and memory to the listener, including the comparisons if `comparing`.
    Algorithms that need more workspace than the last of the ascending `limits` are not measured. A race looks
    for a choice within each limit and, with `undivided`, for the best undivided algorithm.
    """
    missing = find_missing(bench, kernels, policy, limits, undivided=undivided)
    if missing.tasks:
        with no_fork:
            from mucudnn.measuring.estimate import announcement, forecast  # it imports numpy

        bench.listener.message(
            forecast(bench, missing, kernels if comparing else ())
            if bench.runner.is_complete or undivided
            else announcement(missing)
        )
    measure(bench, missing)
