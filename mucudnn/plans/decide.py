"""The choice of configurations from measurements, without an engine or a cache."""

import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain

from mucudnn._native import most_slices, most_slices_in_place
from mucudnn.costs.records import CANNOT_ACCUMULATE, STOCK, Comparison, Measurement
from mucudnn.costs.table import CostTable
from mucudnn.errors import NothingFitsError
from mucudnn.listener import Listener
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import usable_sizes
from mucudnn.sizes import format_size
from mucudnn.solver import (
    ChannelGroups,
    Configuration,
    Infeasible,
    MicroConfiguration,
    Shares,
    WorkspaceDivision,
    desirable_set,
    reuse_workspace,
    solve_division,
)
from mucudnn.solver.workspace.configuration import faster

LEAST_SPEEDUP = 1.03  # smaller differences between interleaved runs may be chance
_RACED_LIMITS = 5  # the limits of a race under a total: the total, a quarter of it, and so on


@dataclass(frozen=True)
class Limits:
    """The workspace allowed, in bytes; None for no limit.

    With `workspace` each kernel has that limit (workspace reuse, WR). With `total` all kernels share it
    (workspace division, WD); `exact` then asks for the optimum, however long the solver takes.
    """

    workspace: int | None = None
    total: int | None = None
    exact: bool = False

    @property
    def mode(self) -> str:
        """The mode: `wd` with a total, else `wr`."""
        return "wr" if self.total is None else "wd"

    @property
    def raced(self) -> tuple[int | None, ...]:
        """The limits within which a race looks for one kernel's choice, ascending.

        Any part of a total may go to a kernel, so a race under a total has several limits.
        """
        if self.total is None:
            return (self.workspace,)
        return tuple(sorted({0, *(self.total // 4**part for part in range(_RACED_LIMITS))}))

    def granted(self, choice: Configuration) -> int | None:
        """Return the bytes that a kernel may use; under a total, the workspace of its choice."""
        return self.workspace if self.total is None else choice.workspace


@dataclass(frozen=True)
class Decision:
    """A kernel's best undivided algorithm and its best configuration, both within the same workspace.

    `desirable` is the desirable set: the kernel's Pareto-optimal configurations, workspace ascending. If the
    solver chooses not to divide, `divided` equals `undivided`. `undivided` is None if no algorithm can run
    the whole mini-batch within the workspace. `outrun` is the division with the best prediction, if another
    division was faster when run whole.

    `shares` has a decision for each group of identical kernels with a configuration of their own; the count
    of its kernel is the size of the group. The shares of all kernels together divide a total faster than the
    decisions themselves. `shares` is empty if that makes no difference to the kernel.

    `is_busy` says that other programs disturbed too many runs of the comparison. Its times then decide
    nothing, and the undivided algorithm stays.

    `groups` of channels are faster than the choice: by their whole run, which took `groups_ms`, or by
    prediction if `groups_ms` is None.
    """

    kernel: Kernel
    desirable: tuple[Configuration, ...]
    undivided: Configuration | None
    divided: Configuration
    comparison: Comparison | None = None
    shares: tuple["Decision", ...] = ()
    is_busy: bool = False
    outrun: Configuration | None = None
    groups: ChannelGroups | None = None
    groups_ms: float | None = None

    @property
    def dropped(self) -> bool:
        """True if the division, run whole, was not clearly faster than the undivided algorithm."""
        speedup = self.comparison.speedup if self.comparison else None
        if speedup is None or self.divided == self.undivided:
            return False
        return self.is_busy or speedup < LEAST_SPEEDUP

    @property
    def chosen(self) -> Configuration:
        """The configuration to run, which `groups` are compared with."""
        return self.undivided if self.dropped and self.undivided is not None else self.divided

    @property
    def best(self) -> Configuration | ChannelGroups:
        """The groups of channels, if they are faster than the choice; else the choice."""
        return self.groups or self.chosen

    @property
    def each(self) -> tuple["Decision", ...]:
        """The decision itself and the decisions of its shares."""
        return self, *self.shares

    @property
    def apart(self) -> tuple["Decision", ...]:
        """The decisions of the shares, or the decision itself if identical kernels do not differ."""
        return self.shares or (self,)

    @property
    def time_ms(self) -> float:
        """Milliseconds of `best`: measured whole if it was compared, else predicted."""
        if self.groups_ms is not None:
            return self.groups_ms
        if self.groups is not None or self.comparison is None:
            return self.best.time_ms
        undivided = self.comparison.undivided_ms
        return undivided if self.dropped and undivided is not None else self.comparison.divided_ms


def sum_times(decisions: Iterable[Decision]) -> float:
    """Return the milliseconds of all kernels, weighted by count."""
    return math.fsum(decision.kernel.count * decision.time_ms for decision in decisions)


def decide(
    costs: CostTable,
    policy: str,
    limits: Limits,
    listener: Listener | None = None,
) -> list[Decision]:
    """Choose a configuration for every kernel of the table from its costs at the policy's sizes.

    The listener gets a message if the solver runs out of time. Raises NothingFitsError if no configuration
    of a kernel fits, with the kernel and the least workspace; MucudnnError if a size was never measured.
    """
    wanted = {kernel: costs.at_sizes(kernel, usable_sizes(policy, kernel)) for kernel in costs.measurements}
    desirable = {kernel: desirable_configurations(rows, kernel) for kernel, rows in wanted.items()}
    for kernel, configurations in desirable.items():
        if not configurations:
            raise nothing_fits(kernel, configurations, None)
    chosen, shares = (
        _divide_total(desirable, limits, listener)
        if limits.mode == "wd"
        else (_choose_fastest(desirable, limits.workspace), {})
    )

    def make(kernel: Kernel, choice: Configuration, shares: Shares = ()) -> Decision:
        whole = undivided_parts(wanted[kernel], kernel, limits.granted(choice))
        best = min(whole, key=lambda part: (part.time_ms, part.workspace), default=None)
        undivided = None if best is None else Configuration((best,))
        apart = tuple(make(replace(kernel, count=count), share) for count, share in shares)
        return Decision(kernel, tuple(desirable[kernel]), undivided, choice, shares=apart)

    return [make(kernel, choice, shares.get(kernel, ())) for kernel, choice in chosen.items()]


def choose_within(costs: CostTable, kernel: Kernel, policy: str, limit: int | None) -> Configuration:
    """Return the fastest configuration of one kernel within a limit, as `decide` chooses it.

    This does not find the desirable set, which takes longer. Raises NothingFitsError, MucudnnError.
    """
    rows = costs.at_sizes(kernel, usable_sizes(policy, kernel))
    fastest = fastest_configuration(rows, kernel, limit)
    if fastest is None:
        raise nothing_fits(kernel, desirable_configurations(rows, kernel), limit)
    return fastest


def keep_undivided(
    chosen: Configuration, rows: Iterable[Measurement], kernel: Kernel, limit: int | None
) -> Configuration:
    """Return the choice within a limit, or instead an undivided configuration that is nearly as fast.

    Differences below LEAST_SPEEDUP may be chance. STOCK comes before the engine's algorithms.
    """
    near = [
        part
        for part in undivided_parts(rows, kernel, limit)
        if part.time_ms <= LEAST_SPEEDUP * chosen.time_ms
    ]
    first = min(near, key=lambda part: (part.algorithm != STOCK, part.time_ms), default=None)
    return chosen if first is None else Configuration((first,))


def desirable_configurations(measured: Sequence[Measurement], kernel: Kernel) -> list[Configuration]:
    """Return the desirable set of a kernel: its Pareto-optimal configurations, workspace ascending.

    A filter gradient in 16 bits sums only a few slices in place. A division into more slices needs an
    accumulator, whose bytes count as workspace of its parts. A kernel whose slices cannot be summed at all
    has only undivided configurations, whatever was measured.
    """
    mini_batch = kernel.mini_batch
    sets = [desirable_set(parts, mini_batch) for parts in _combinable_parts(measured, kernel)]
    if len(sets) == 1:
        return sets[0]
    front: list[Configuration] = []
    for configuration in sorted(chain(*sets), key=_preference):
        if not front or configuration.time_ms < front[-1].time_ms:
            front.append(configuration)
    return front


def fastest_configuration(
    measured: Sequence[Measurement], kernel: Kernel, limit: int | None
) -> Configuration | None:
    """Return the desirable set's fastest configuration within a limit without finding the rest of the set.

    Return None if nothing fits the limit.
    """
    fastest = []
    for parts in _combinable_parts(measured, kernel):
        with suppress(Infeasible):
            fastest.append(reuse_workspace(parts, kernel.mini_batch, limit))
    return min(fastest, key=lambda c: (c.time_ms, *_preference(c)), default=None)


def _preference(configuration: Configuration) -> tuple[int, float, int]:
    return configuration.workspace, configuration.time_ms, len(configuration.parts)


def _combinable_parts(measured: Sequence[Measurement], kernel: Kernel) -> list[list[MicroConfiguration]]:
    """Return lists of micro-configurations to combine: one, or one summed in place and one accumulated."""
    mini_batch = kernel.mini_batch
    parts = [(part, m.accumulator) for m in measured if (part := m.part()) is not None]
    if most_slices(kernel) == 1:
        parts = [(part, 0) for part, _ in parts if part.micro_batch == mini_batch]
    if not any(accumulator for _, accumulator in parts):
        return [[part for part, _ in parts]]
    most = most_slices_in_place(kernel)
    # Slices of these sizes are so few that they need no accumulator.
    in_place = [part for part, _ in parts if part.micro_batch * most >= mini_batch]
    accumulated = [
        part if part.micro_batch == mini_batch else replace(part, workspace=part.workspace + accumulator)
        for part, accumulator in parts
        if accumulator != CANNOT_ACCUMULATE
    ]
    return [in_place, accumulated]


def _choose_fastest(
    desirable: Mapping[Kernel, Sequence[Configuration]], limit: int | None
) -> dict[Kernel, Configuration]:
    """Choose by workspace reuse (WR): the fastest configuration within each kernel's limit.

    Time descends along a desirable set, so that is the last configuration that fits.
    """
    chosen = {}
    for kernel, configurations in desirable.items():
        fitting = [c for c in configurations if limit is None or c.workspace <= limit]
        if not fitting:
            raise nothing_fits(kernel, configurations, limit)
        chosen[kernel] = fitting[-1]
    return chosen


def nothing_fits(kernel: Kernel, desirable: Sequence[Configuration], limit: int | None) -> NothingFitsError:
    """Return the error for a kernel none of whose configurations fits a limit."""
    if not desirable:
        return NothingFitsError(f"{kernel}: no algorithm runs at any of the measured micro-batch sizes")
    return NothingFitsError(
        f"{kernel}: nothing fits {format_size(limit)} of workspace, "
        f"the least that works is {desirable[0].workspace} bytes"
    )


def _divide_total(
    desirable: Mapping[Kernel, Sequence[Configuration]], limits: Limits, listener: Listener | None
) -> tuple[dict[Kernel, Configuration], dict[Kernel, Shares]]:
    """Choose by workspace division (WD): the configurations that are fastest together within the total.

    Returns one configuration for all identical kernels, and the shares of those kernels that a faster
    division treats differently.
    """
    assert limits.total is not None
    counts = {kernel: kernel.count for kernel in desirable}
    try:
        division = solve_division(dict(desirable), limits.total, counts=counts, exact=limits.exact)
    except Infeasible:
        least = {kernel: kernel.count * c[0].workspace for kernel, c in desirable.items()}
        most = max(least, key=least.__getitem__)
        raise NothingFitsError(
            f"nothing fits {format_size(limits.total)} of workspace in total, the least that works is "
            f"{sum(least.values())} bytes, {least[most]} of them for {most}"
        ) from None
    if not division.reached and listener is not None:
        listener.message(
            f"The solver was stopped after {division.seconds:.0f} s at a gap of {division.gap:.2%}: "
            "another division of the total saves at most that much of the time"
        )
    return division.choice, _divide_apart(desirable, limits, division)


def _divide_apart(
    desirable: Mapping[Kernel, Sequence[Configuration]], limits: Limits, together: WorkspaceDivision[Kernel]
) -> dict[Kernel, Shares]:
    """Divide the total again, letting identical kernels differ.

    Returns the shares of the kernels that differ, or none if the division is not faster.
    """
    assert limits.total is not None
    counts = {kernel: kernel.count for kernel in desirable}
    is_fastest = all(together.choice[kernel] == front[-1] for kernel, front in desirable.items())
    if is_fastest or max(counts.values()) == 1:
        return {}
    division = solve_division(dict(desirable), limits.total, counts=counts, apart=True, exact=limits.exact)
    if not faster(_sum_times(division.shares), _sum_times(together.shares)):
        return {}
    return {kernel: own for kernel, own in division.shares.items() if own != together.shares[kernel]}


def _sum_times(shares: Mapping[Kernel, Shares]) -> float:
    return math.fsum(count * share.time_ms for each in shares.values() for count, share in each)


def undivided_parts(
    rows: Iterable[Measurement], kernel: Kernel, limit: int | None = None
) -> list[MicroConfiguration]:
    """Return the algorithms that run the whole mini-batch within a limit."""
    parts = [part for m in rows if m.is_undivided(kernel.mini_batch) and (part := m.part())]
    return [part for part in parts if limit is None or part.workspace <= limit]
