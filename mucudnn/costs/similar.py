"""The measurements of similar kernels, which say something about a kernel that was not measured yet."""

from functools import partial
from itertools import islice

from mucudnn._native import parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import Machine, Measurement
from mucudnn.costs.schema import MEASUREMENT
from mucudnn.problems.kernels import Kernel


def find_similar(
    cache: Cache, machine: Machine, kernel: Kernel, most: int
) -> list[tuple[Kernel, Measurement]]:
    """Return up to `most` measured times of similar kernels, the kernel itself at all sizes among them.

    Similar kernels have the same pass, types, layout and taps, and are grouped if this one is. Those with the
    nearest channels and image sizes come first. Disturbed times on several threads are omitted, because they
    may be far too long.
    """
    known = [
        other
        for other in _measured_kernels(cache, machine, kernel.pass_)
        if _family(other) == _family(kernel)
    ]
    similar = (
        (other, row)
        for other in sorted(known, key=partial(_distance, kernel))
        for row in cache.measurements(machine, other)
        if row.time_ms is not None and (row.busy_tries == 0 or machine.threads == 1)
    )
    return list(islice(similar, most))


def _measured_kernels(cache: Cache, machine: Machine, pass_: str) -> list[Kernel]:
    sql = (
        "SELECT DISTINCT problem FROM rows WHERE device = ? AND library = ? AND threads = ? AND pass = ? "
        "AND kind = ?"
    )
    values = *machine.identity, pass_, MEASUREMENT.name
    return cache.attempt(
        lambda connection: [
            Kernel(parse_descriptor(text)[0], pass_) for (text,) in connection.execute(sql, values).fetchall()
        ]
    )


def _family(kernel: Kernel) -> tuple[object, ...]:
    problem = kernel.problem
    types = problem.data_type, problem.layout, problem.math
    return *types, problem.kernel[-2:], problem.groups > 1


def _distance(kernel: Kernel, other: Kernel) -> int:
    ours, theirs = (
        (problem.in_channels, problem.out_channels, *problem.input[-2:])
        for problem in (kernel.problem, other.problem)
    )
    return sum(abs(a - b) for a, b in zip(ours, theirs, strict=True))
