"""The main job: make the missing measurements, decide, compare the choices with undivided runs."""

from collections.abc import Sequence
from dataclasses import replace

from mucudnn.costs.cache import Cache
from mucudnn.costs.records import FRAMEWORK, PLANNING, Machine
from mucudnn.costs.table import CostTable
from mucudnn.errors import MucudnnError, UsageError
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.plans.decide import Decision, Limits, decide, sum_times
from mucudnn.plans.result import Result
from mucudnn.plans.whole_runs import WholeRuns
from mucudnn.problems.kernels import Kernel


def optimize(
    bench: Bench, kernels: Sequence[Kernel], policy: str, limits: Limits, *, run: bool = True
) -> Result:
    """Make the missing measurements and choose a configuration for each kernel.

    With `run`, each chosen division is also run whole in turns with the best undivided algorithm; a division
    that is slower is dropped. If the division takes much longer than predicted, the next best ones are run
    whole too, and the fastest one is chosen. Raises MucudnnError, NothingFitsError.
    """
    measured = (None,) if bench.thorough else limits.raced
    measurements = benchmark(bench, kernels, policy, comparing=run, limits=measured, rivals=True)
    costs = bench.costs(kernels)
    decisions = decide(costs, policy, limits, bench.listener)
    if run:
        runs = WholeRuns(bench, costs, policy, limits)
        missing = [one for decision in decisions for one in decision.each if runs.is_missing(one)]
        claimed = bench.cache.claimed(missing, runs.name_claim)
        for decision in bench.listener.track(claimed, "Running whole", total=len(missing)):
            measurements += runs.run_missing(decision)
        decisions = keep_faster_shares([runs.look_up(decision) for decision in decisions])
    return Result(bench.machine, policy, limits, measurements, tuple(decisions))


def keep_faster_shares(decisions: Sequence[Decision]) -> list[Decision]:
    """Return the decisions; without all of their shares, if these are no faster when run whole."""
    apart = [one for decision in decisions for one in decision.apart]
    return (
        list(decisions)
        if sum_times(apart) < sum_times(decisions)
        else [replace(one, shares=()) for one in decisions]
    )


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
    costs = CostTable.read(cache, machine, kernels)
    missing = [str(kernel) for kernel, rows in costs.measurements.items() if not rows]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise MucudnnError(f"{cache.path} has no measurements of {', '.join(missing[:3])}{more} on {machine}")
    return Result(machine, policy, limits, 0, tuple(decide(costs, policy, limits, listener)))


def _find_only_machine(cache: Cache, threads: int | None) -> Machine:
    machines = [
        m
        for m in cache.machines()
        if m.engine not in (PLANNING, FRAMEWORK) and (threads is None or m.threads == threads)
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
