"""The configuration that runs an array call: the fastest by measurements, or what a cost model predicts."""

from collections.abc import Sequence
from typing import NamedTuple

from mucudnn import settings
from mucudnn._native import Engine, UnfinishedError
from mucudnn.arrays.call import LogListener, PassCall, PlanOrPath, geometry, known_plan, limit_of
from mucudnn.arrays.devices import device_of
from mucudnn.arrays.user_cache import user_cache
from mucudnn.costs.records import STOCK, Measurement
from mucudnn.errors import NothingFitsError, NotMeasuredError
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench, EngineBench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.measure import find_missing
from mucudnn.measuring.runners import Race, Runner
from mucudnn.measuring.source import Source
from mucudnn.plans.decide import choose_within, keep_undivided
from mucudnn.plans.fixed import fixed_choice, invariant_choice
from mucudnn.plans.parts.parts import faster_groups
from mucudnn.problems.kernels import Kernel
from mucudnn.promises import FIXED
from mucudnn.solver import ChannelGroups, Configuration, MicroConfiguration


class Choice(NamedTuple):
    """The configuration or channel groups that run, STOCK undivided if it fits, and the rows that chose."""

    configuration: Configuration | ChannelGroups
    undivided_stock: MicroConfiguration | None = None
    rows: Sequence[Measurement] = ()  # empty if none chose

    @property
    def is_busy(self) -> bool:
        """True if other programs disturbed a measurement that the choice depends on."""
        parts = self.configuration.parts if isinstance(self.configuration, Configuration) else ()
        used = {(part.micro_batch, part.algorithm) for part in parts}
        if self.undivided_stock is not None:
            used.add((self.undivided_stock.micro_batch, STOCK))
        return any(row.busy_tries and (row.micro_batch, row.algorithm) in used for row in self.rows)


def choose(
    engine: Engine, kernel: Kernel, limit: int | None, source: Source | None, may_measure: bool,
    call: PassCall,
) -> Choice:  # fmt: skip
    """Return the fastest configuration or parts within a limit, and STOCK undivided if that fits.

    Raises NothingFitsError, NotMeasuredError, and UnfinishedError if a paced program has no time to measure.
    """
    listener, policy = LogListener(), settings.BATCH_POLICY.read()
    if call.promise.choice == FIXED and not call.promise.batch_invariant and engine.kind == "host":
        modelled = EngineBench(engine, listener, _runner(source), call.deterministic)
        return Choice(fixed_choice(modelled, kernel, policy, limit))
    with user_cache(listener) as cache:
        bench = Bench(engine, cache, listener, _runner(source), source, call.deterministic)
        if call.promise.batch_invariant:
            return Choice(invariant_choice(bench, kernel, limit))
        if not call.promise.is_timed:
            return Choice(fixed_choice(bench, kernel, policy, limit))
        costs = (
            benchmark(bench, [kernel], policy, limits=(limit,))
            if may_measure and not _must_wait(bench)
            else bench.costs([kernel])
        )
        if _must_wait(bench) and not _has_measurements(bench, kernel, policy, limit):
            raise UnfinishedError("there is no time to measure now")
        if not may_measure and not _has_measurements(bench, kernel, policy, limit):
            raise NotMeasuredError(f"{kernel} was not measured")
        try:
            chosen = choose_within(costs, kernel, policy, limit)
        except NothingFitsError:
            groups = faster_groups(bench, kernel, policy, limit, None) if may_measure else None
            if groups is None:
                raise
            return Choice(groups)
        rows = costs.measurements[kernel]
        # Times of a busy moment are not trusted while there will be time to measure them again.
        if (
            _must_wait(bench)
            and any(row.busy_tries for row in rows)
            and not _has_measurements(bench, kernel, policy, limit, again=True)
        ):
            raise UnfinishedError("the measurements were disturbed")
        chosen = keep_undivided(chosen, rows, kernel, limit)
        may_measure = may_measure and not bench.budget.is_spent
        groups = faster_groups(bench, kernel, policy, limit, chosen) if may_measure else None
        whole = [m.part() for m in rows if m.algorithm == STOCK and m.micro_batch == kernel.mini_batch]
        stock = next((part for part in whole if part and (limit is None or part.workspace <= limit)), None)
        return Choice(groups or chosen, stock, rows)


def _must_wait(bench: Bench) -> bool:
    """Return whether a paced program has no time for measurements now."""
    return bench.budget.is_paced and bench.budget.is_spent


def _runner(source: Source | None) -> Runner:
    """Return the way to measure for a call: a program with a framework waits for it in its first step."""
    return Race(is_hurried=source is not None)


def is_measured(call: PassCall, plan: PlanOrPath | None, source: Source | None) -> bool:
    """Return whether a decision about a call needs no measurements. Raises MucudnnError."""
    kernel, limit = Kernel(geometry(call)[0], call.pass_), limit_of(call.workspace)
    if plan is not None and known_plan(plan).find(kernel) is not None:
        return True
    engine = device_of(call).engine
    with user_cache(LogListener()) as cache:
        bench = Bench(engine, cache, Listener(), _runner(source), source, call.deterministic)
        return _has_measurements(bench, kernel, settings.BATCH_POLICY.read(), limit)


def _has_measurements(
    bench: Bench, kernel: Kernel, policy: str, limit: int | None, *, again: bool = False
) -> bool:
    """Return whether the cache has all measurements that a decision within a limit needs.

    With `again`, disturbed measurements that are due do not count.
    """
    # A kernel that the cache does not know at all would make the engine list its algorithms.
    is_known = bool(bench.costs([kernel]).measurements[kernel])
    return is_known and not find_missing(bench, [kernel], policy, (limit,), again=again).tasks
