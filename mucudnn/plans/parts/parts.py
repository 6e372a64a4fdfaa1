"""Groups of channels that a plan has in addition to the choice.

Like divisions of the mini-batch, they fit a kernel into a limit. Because they make copies, which no
measurement of an algorithm includes, they are run whole, interleaved with the division, before they are used.
"""

from collections.abc import Sequence
from dataclasses import replace

from mucudnn.costs.records import RECORDED
from mucudnn.errors import NothingFitsError
from mucudnn.forks import no_fork
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.source import runs_stock
from mucudnn.plans.decide import LEAST_SPEEDUP, Decision, Limits, choose_within
from mucudnn.plans.parts.channels import measure_groups, propose_groups
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import ChannelGroups, Configuration

_LEAST_GAIN = 0.05  # the least predicted gain that is worth a comparison in a hurry


def slice_count(chosen: Configuration | ChannelGroups) -> int:
    """Return the most slices that are added to one filter gradient."""
    return chosen.slice_count if isinstance(chosen, ChannelGroups) else len(chosen.parts)


def add_groups(
    bench: Bench, decisions: Sequence[Decision], policy: str, limits: Limits, *, run: bool
) -> list[Decision]:
    """Return the decisions with the groups of channels that are faster.

    With a total (WD), groups may use the workspace of the choice. A kernel whose identical kernels differ
    gets no groups. With `run` groups and choice are run whole, otherwise their predictions are compared.
    """
    allowed = {
        decision.kernel: limit
        for decision in decisions
        if not decision.shares and (limit := limits.granted(decision.divided)) is not None
    }
    if policy == "undivided":
        return list(decisions)
    if bench.runner.measures:
        measure_groups(bench, allowed, policy)  # level by level, so that one message covers all kernels
    extended = []
    listener = bench.listener if run else Listener()  # importing a progress bar takes long
    for decision in listener.track(decisions, "Running groups of channels whole"):
        kernel, chosen = decision.kernel, decision.divided
        if kernel in allowed:
            groups = faster_groups(bench, kernel, policy, allowed[kernel], chosen, run=run)
            if groups is not None:
                measured_ms = time_of(bench, kernel, groups, chosen) if run else None
                decision = replace(decision, groups=groups, groups_ms=measured_ms)
        extended.append(decision)
    return extended


def faster_groups(
    bench: Bench, kernel: Kernel, policy: str, limit: int | None, chosen: Configuration | None,
    *, run: bool = True,
) -> ChannelGroups | None:  # fmt: skip
    """Return the fastest groups within `limit` bytes of workspace, if they are faster than `chosen`.

    `chosen` is a division of the mini-batch, or None if no division fits. Makes the missing measurements.
    """
    # No project recorded the copies that groups of channels make.
    if limit is None or policy == "undivided" or bench.machine.engine == RECORDED:
        return None
    groups = propose_groups(bench, kernel, policy, limit)
    if groups is None or not _is_faster(bench, kernel, policy, limit, groups, chosen, run):
        return None
    return groups


def _is_faster(
    bench: Bench, kernel: Kernel, policy: str, limit: int, groups: ChannelGroups,
    chosen: Configuration | None, run: bool,
) -> bool:  # fmt: skip
    """Return whether groups within a limit are faster than the division of the mini-batch, if there is one.

    A division with STOCK counts with its predicted time alone: the groups are compared with the best
    configuration of the engine, and their time in that comparison with the predicted time of `chosen`.
    """
    if chosen is None:
        return True
    if not runs_stock(chosen):
        return are_faster(bench, kernel, groups, chosen, run)
    if not _are_promising(bench, kernel, groups, chosen):
        return False
    try:
        own = choose_within(bench.without_source().costs([kernel]), kernel, policy, limit)
    except NothingFitsError:
        return groups.time_ms < chosen.time_ms
    return (
        are_faster(bench, kernel, groups, own, run) and time_of(bench, kernel, groups, own) < chosen.time_ms
    )


def are_faster(
    bench: Bench, kernel: Kernel, groups: ChannelGroups, division: Configuration, run: bool = True
) -> bool:
    """Return whether groups of channels are faster than a division of the mini-batch alone.

    Both are run whole, the groups with their copies, unless the cache has the comparison or no gain
    is predicted. If other programs disturb too many runs, the division stays, and the cache does not keep the
    comparison. Without `run` the prediction replaces a missing comparison.
    """
    known = bench.cache.comparison(bench.machine, kernel, division, groups)
    if known is None and not run:
        return division.time_ms / groups.time_ms > LEAST_SPEEDUP
    if known is None:
        if not _are_promising(bench, kernel, groups, division):
            return False
        with no_fork:
            from mucudnn.measuring.compare import compare  # it imports numpy

        known, is_busy = compare(bench, kernel, division, groups)
        if is_busy:
            return False
        bench.cache.add_comparison(bench.machine, kernel, division, groups, known)
    assert known.speedup is not None
    return known.speedup > LEAST_SPEEDUP


def time_of(bench: Bench, kernel: Kernel, groups: ChannelGroups, division: Configuration | None) -> float:
    """Return the ms of groups in the comparison with a division, else the predicted ms."""
    compared = division and bench.cache.comparison(bench.machine, kernel, division, groups)
    return compared.divided_ms if compared else groups.time_ms


def _are_promising(bench: Bench, kernel: Kernel, groups: ChannelGroups, division: Configuration) -> bool:
    """Return whether groups are predicted to be faster; in a hurry, by at least the least gain."""
    least = 1 - _LEAST_GAIN if bench.runner.is_hurried else 1
    return groups.time_ms < division.time_ms * least
