"""What can run a kernel: the library is asked once, and the cache keeps what it says."""

from collections.abc import Sequence

from mucudnn._native import Engine, Planner
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import SUCCESS, Listed, Machine, Measurement
from mucudnn.problems.kernels import Kernel


def candidates(
    source: Engine | Planner, machine: Machine, cache: Cache, kernel: Kernel, sizes: Sequence[int]
) -> dict[int, list[Listed]]:
    """What can run at each micro-batch size: as the cache has it, else as the source, of that machine, says.

    That is kept, and what cannot run is kept as a failure. What failed for the moment is not, nor is then the
    list that it is missing from: the source is asked again the next time.
    """
    known = cache.enumerations(machine, kernel.problem, kernel.pass_)
    for size in sizes:
        if size not in known:
            known[size] = _ask(source, machine, cache, kernel, size)
    return {size: known[size] for size in sizes}


def _ask(source: Engine | Planner, machine: Machine, cache: Cache, kernel: Kernel, size: int) -> list[Listed]:
    problem, pass_ = kernel.problem.replace(mini_batch=size), kernel.pass_
    enumeration = source.enumerate(problem, pass_)
    measured = {(m.micro_batch, m.algorithm) for m in cache.measurements(machine, problem, pass_)}
    runnable = []
    for c in enumeration:
        if c.status == SUCCESS:
            runnable.append(Listed(c.algorithm, c.workspace, c.notes))
        elif c.is_lasting and (size, c.algorithm) not in measured:
            failure = Measurement(size, c.algorithm, c.status, c.workspace, c.notes)
            cache.add(machine, problem, pass_, failure)
    if enumeration.is_complete:
        cache.add_enumeration(machine, problem, pass_, size, runnable)
    return runnable
