"""The main job: make the missing measurements, decide, compare the choices with undivided runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mucudnn._native import Engine
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import PLANNING, Machine, describe
from mucudnn.errors import MucudnnError, UsageError
from mucudnn.listener import Listener
from mucudnn.measuring.buffers import memory_cap
from mucudnn.measuring.compare import compare
from mucudnn.measuring.estimate import forecast
from mucudnn.measuring.measure import machine_of, measure, survey
from mucudnn.plans.decide import Decision, Limits, decide
from mucudnn.problems.kernels import Kernel


@dataclass(frozen=True)
class Result:
    """The decisions for a network, with the machine, policy and limits that they were made for."""

    machine: Machine
    policy: str
    limits: Limits
    new_measurements: int
    decisions: tuple[Decision, ...]


def benchmark(
    engine: Engine,
    cache: Cache,
    kernels: Sequence[Kernel],
    policy: str,
    listener: Listener,
    *,
    comparing: bool,
    limit: int | None = None,
) -> int:
    """Make the measurements that the cache lacks. Returns the number of measurements made.

    The listener first gets a forecast of time and memory, which includes the comparisons if `comparing`.
    Algorithms that need more workspace than `limit` bytes are left out.
    """
    cap = memory_cap(engine)
    found = survey(engine, cache, kernels, policy, cap, limit)
    if found.tasks:
        listener.message(forecast(engine, found, kernels if comparing else (), cap))
    return measure(engine, cache, found, cap, listener)


def optimize(
    engine: Engine,
    cache: Cache,
    kernels: Sequence[Kernel],
    policy: str,
    limits: Limits,
    listener: Listener,
    *,
    run: bool = True,
) -> Result:
    """Make the missing measurements and choose a configuration for each kernel.

    With `run`, each chosen division is also run whole in turns with the best undivided algorithm; a division
    that is slower is dropped. Raises MucudnnError, NothingFitsError.
    """
    machine = machine_of(engine)
    measurements = benchmark(engine, cache, kernels, policy, listener, comparing=run)
    measured = {k: cache.measurements(machine, k.problem, k.pass_) for k in kernels}
    decisions = decide(measured, policy, limits, listener)
    if run:
        before = [_add_comparison(cache, machine, decision) for decision in decisions]
        missing = [decision for decision in before if decision.comparison is None]
        claimed = cache.claimed(missing, lambda decision: _name_claim(machine, decision))
        for decision in listener.track(claimed, "Running whole", total=len(missing)):
            # Another process may have made this comparison in the meantime.
            if _add_comparison(cache, machine, decision).comparison is None:
                _run_whole(engine, cache, decision)
                measurements += 1
        decisions = [_add_comparison(cache, machine, decision) for decision in before]
    return Result(machine, policy, limits, measurements, tuple(decisions))


def replay(
    cache: Cache,
    kernels: Sequence[Kernel],
    policy: str,
    limits: Limits,
    listener: Listener | None = None,
    *,
    threads: int | None = None,
) -> Result:
    """Choose a configuration for each kernel from recorded measurements alone, without any engine.

    Raises MucudnnError that names the kernels without measurements, and UsageError if the cache has
    measurements of several machines with that many threads.
    """
    machine = _find_only_machine(cache, threads)
    measured = {k: cache.measurements(machine, k.problem, k.pass_) for k in kernels}
    missing = [str(kernel) for kernel, rows in measured.items() if not rows]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise MucudnnError(f"{cache.path} has no measurements of {', '.join(missing[:3])}{more} on {machine}")
    return Result(machine, policy, limits, 0, tuple(decide(measured, policy, limits, listener)))


def _find_only_machine(cache: Cache, threads: int | None) -> Machine:
    machines = [
        m for m in cache.machines() if m.engine != PLANNING and (threads is None or m.threads == threads)
    ]
    if not machines:
        wanted = "" if threads is None else f" with {threads} threads"
        raise MucudnnError(f"{cache.path} has no measurements{wanted}")
    if len(machines) > 1:
        names = "; ".join(map(str, machines))
        raise UsageError(
            f"{cache.path} has measurements of several machines: give --threads or another file ({names})"
        )
    return machines[0]


def _describe_both(decision: Decision) -> tuple[str, str]:
    return describe(decision.undivided) if decision.undivided else "", describe(decision.divided)


def _name_claim(machine: Machine, decision: Decision) -> str:
    kernel = decision.kernel
    return f"compare {machine.identity} {kernel.problem} {kernel.pass_} {_describe_both(decision)}"


def _add_comparison(cache: Cache, machine: Machine, decision: Decision) -> Decision:
    """Return the decision with the comparison that the cache has of it, or None."""
    kernel = decision.kernel
    found = cache.comparison(machine, kernel.problem, kernel.pass_, *_describe_both(decision))
    return replace(decision, comparison=found)


def _run_whole(engine: Engine, cache: Cache, decision: Decision) -> None:
    kernel = decision.kernel
    compared = compare(engine, kernel, decision.undivided, decision.divided, memory_cap(engine))
    cache.add_comparison(
        machine_of(engine), kernel.problem, kernel.pass_, *_describe_both(decision), compared
    )
