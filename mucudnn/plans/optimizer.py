"""Optimization: make the missing measurements, decide, and compare the choices with undivided runs."""

from collections.abc import Sequence
from dataclasses import replace

from mucudnn.costs.cache import Cache
from mucudnn.costs.records import FRAMEWORK, PLANNING, Machine
from mucudnn.errors import MucudnnError, UsageError
from mucudnn.forks import no_fork
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench, RecordedBench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.plans.decide import Decision, Limits, decide
from mucudnn.plans.parts.parts import add_groups
from mucudnn.plans.result import Result, total
from mucudnn.plans.whole_runs import WholeRuns, stay_undivided
from mucudnn.problems.kernels import Kernel
from mucudnn.promises import USUAL, Promise


def optimize(
    bench: Bench,
    kernels: Sequence[Kernel],
    policy: str,
    limits: Limits,
    *,
    run: bool = True,
    promise: Promise = USUAL,
) -> Result:
    """Make the missing measurements and choose a configuration for each kernel.

    With `run`, each chosen division is also run whole, interleaved with the best undivided algorithm, and
    replaced if it is slower. If it takes much longer than predicted, the next best divisions are run whole
    too, and the fastest is chosen. Groups of channels replace a slower choice. Once the bench's budget is
    spent, the choices are made from what is measured by then, and nothing more is run whole.

    If no clock may choose, by the `promise`, nothing is measured, and a model's times order the choices.

    Raises MucudnnError, NothingFitsError, and UsageError for a total with a batch-invariant promise.
    """
    if not promise.is_timed:
        with no_fork:
            from mucudnn.plans.fixed import decide_without_clock  # it imports numpy

        decided = decide_without_clock(
            bench, kernels, policy, limits, batch_invariant=promise.batch_invariant
        )
        return Result(bench.machine, policy, limits, 0, tuple(decided), promise)
    with bench.budget.spending():
        result = bench.cache.consistently(lambda: _optimize(bench, kernels, policy, limits, run=run))
    return replace(result, promise=promise)


def _optimize(bench: Bench, kernels: Sequence[Kernel], policy: str, limits: Limits, *, run: bool) -> Result:
    before, runner = bench.made.total(), bench.runner
    run = run and runner.measures
    measured_for = (None,) if runner.is_complete else limits.raced
    costs = benchmark(bench, kernels, policy, limits=measured_for, undivided=True)
    decisions = decide(costs, policy, limits, bench.listener)
    if run:
        runs = WholeRuns(bench, costs, policy, limits)
        missing = [each for decision in decisions for each in decision.each if runs.is_missing(each)]
        claimed = bench.cache.claimed(missing, runs.name_claim)
        for decision in bench.listener.track(claimed, "Running whole", total=len(missing)):
            if not bench.budget.is_spent:
                runs.run_missing(decision)
        decisions = keep_fastest([runs.look_up(decision) for decision in decisions])
    if not bench.budget.is_spent:
        decisions = add_groups(bench, decisions, policy, limits, run=run)
    return Result(bench.machine, policy, limits, bench.made.total() - before, tuple(decisions))


def replay(
    cache: Cache,
    kernels: Sequence[Kernel],
    policy: str,
    limits: Limits,
    listener: Listener | None = None,
    *,
    machine: str = "",
) -> Result:
    """Choose a configuration for each kernel from recorded measurements alone, without an engine.

    Raises what `open_replay` raises, and NothingFitsError.
    """
    bench = open_replay(cache, kernels, listener, machine=machine)
    return optimize(bench, kernels, policy, limits)


def open_replay(
    cache: Cache,
    kernels: Sequence[Kernel],
    listener: Listener | None = None,
    *,
    machine: str = "",
) -> RecordedBench:
    """Return a bench that replays the measurements of one machine, all of them of a cache.

    Raises MucudnnError with the kernels whose whole mini-batch has no measurements, and UsageError if the
    cache has several machines with the text `machine` in their names, such as `2 threads`.
    """
    bench = RecordedBench(_find_only_machine(cache, machine), cache, listener or Listener())
    rows = bench.costs(kernels).measurements
    missing = [str(k) for k in kernels if all(row.micro_batch != k.mini_batch for row in rows[k])]
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        names = ", ".join(missing[:3])
        raise MucudnnError(f"{cache.path} has no measurements of {names}{more} on {bench.machine}")
    return bench


def keep_fastest(decisions: Sequence[Decision]) -> list[Decision]:
    """Return the decisions as the whole runs of all kernels together show them to be fastest.

    The undivided algorithms replace slower decisions under the same total. Shares stay only if they are
    faster than the decisions without them.
    """
    together = [replace(decision, shares=()) for decision in decisions]
    times = total(together)
    if times.undivided_ms is not None and times.undivided_ms < times.divided_ms:
        together = list(map(stay_undivided, together))
    apart = total(share for decision in decisions for share in decision.apart)
    if apart.divided_ms >= total(together).divided_ms:
        return together
    return [
        replace(whole, shares=() if decision.apart == (whole,) else decision.apart)
        for decision, whole in zip(decisions, together, strict=True)
    ]


def _find_only_machine(cache: Cache, name: str) -> Machine:
    machines = [
        m
        for m in cache.machines()
        if m.engine not in (PLANNING, FRAMEWORK) and name.lower() in str(m).lower()
    ]
    if not machines:
        wanted = f" on '{name}'" if name else ""
        raise MucudnnError(f"{cache.path} has no measurements{wanted}")
    if len(machines) > 1:
        names = "; ".join(map(str, machines))
        raise UsageError(
            f"{cache.path} has measurements of several machines: give --machine or another file ({names})"
        )
    return machines[0]
