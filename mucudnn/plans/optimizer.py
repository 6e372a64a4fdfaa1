"""The main job: make the missing measurements, decide, compare the choices with undivided runs."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mucudnn.costs.cache import Cache
from mucudnn.costs.records import FRAMEWORK, PLANNING, Machine
from mucudnn.costs.table import CostTable
from mucudnn.errors import MucudnnError, UsageError
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.compare import compare
from mucudnn.measuring.estimate import announcement, forecast
from mucudnn.measuring.measure import find_missing, measure
from mucudnn.measuring.source import runs_stock
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

    def _repr_html_(self) -> str:
        """Return a table of the decisions, which notebooks show."""
        from mucudnn.plans.result import to_html  # it imports this module

        return to_html(self)


def benchmark(
    bench: Bench,
    kernels: Sequence[Kernel],
    policy: str,
    *,
    comparing: bool,
    limits: Sequence[int | None] = (None,),
    rivals: bool = False,
) -> int:
    """Make the measurements that the cache lacks. Returns the number of measurements made.

    The listener first gets a forecast of time and memory, which includes the comparisons if `comparing`.
    Algorithms that need more workspace than the last of the ascending `limits` are left out. A race looks for
    a choice within each limit, and with `rivals` for the best undivided algorithm.
    """
    missing = find_missing(bench, kernels, policy, limits, rivals=rivals)
    if missing.tasks:
        bench.listener.message(
            forecast(bench, missing, kernels if comparing else ())
            if bench.thorough or rivals
            else announcement(bench, missing)
        )
    return measure(bench, missing)


def optimize(
    bench: Bench, kernels: Sequence[Kernel], policy: str, limits: Limits, *, run: bool = True
) -> Result:
    """Make the missing measurements and choose a configuration for each kernel.

    With `run`, each chosen division is also run whole in turns with the best undivided algorithm; a division
    that is slower is dropped. Raises MucudnnError, NothingFitsError.
    """
    measured = (None,) if bench.thorough else limits.raced
    measurements = benchmark(bench, kernels, policy, comparing=run, limits=measured, rivals=True)
    decisions = decide(bench.costs(kernels), policy, limits, bench.listener)
    if run:
        before = [_add_comparison(bench, decision) for decision in decisions]
        missing = [decision for decision in before if decision.comparison is None]
        claimed = bench.cache.claimed(missing, lambda decision: _name_claim(bench.machine, decision))
        for decision in bench.listener.track(claimed, "Running whole", total=len(missing)):
            # Another process may have made this comparison in the meantime.
            if _add_comparison(bench, decision).comparison is None:
                _run_whole(bench, decision)
                measurements += 1
        decisions = [_add_comparison(bench, decision) for decision in before]
    return Result(bench.machine, policy, limits, measurements, tuple(decisions))


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


def _name_claim(machine: Machine, decision: Decision) -> str:
    kernel, undivided = decision.kernel, decision.undivided or ""
    return f"compare {machine.identity} {kernel.problem} {kernel.pass_} {undivided}, {decision.divided}"


def _add_comparison(bench: Bench, decision: Decision) -> Decision:
    """Return the decision with the comparison that the cache has of it, or None."""
    machine = _compared_on(bench, decision)
    found = bench.cache.comparison(machine, decision.kernel, decision.undivided, decision.divided)
    return replace(decision, comparison=found)


def _run_whole(bench: Bench, decision: Decision) -> None:
    configurations = decision.undivided, decision.divided
    compared = compare(bench, decision.kernel, *configurations)
    machine = _compared_on(bench, decision)
    bench.cache.add_comparison(machine, decision.kernel, *configurations, compared)


def _compared_on(bench: Bench, decision: Decision) -> Machine:
    """Return the machine of a comparison: that of the source, if a configuration has STOCK."""
    if bench.source is not None and (runs_stock(decision.undivided) or runs_stock(decision.divided)):
        return bench.source.machine
    return bench.machine
