"""The choice of configurations from measurements, without an engine or a cache."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain, repeat
from typing import TypeVar

from mucudnn._native import most_slices
from mucudnn.costs.records import STOCK, Comparison, Measurement
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
    desirable_set,
    reuse_workspace,
    solve_division,
)
from mucudnn.solver.workspace.configuration import faster

T = TypeVar("T")

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
    """A kernel's best undivided algorithm and its best configuration, both within the same limits.

    Under a total, the undivided algorithms of all kernels share it as the configurations do, so that
    `undivided` may use more than `divided`. It is None if nothing undivided fits. `fallback` is the best
    undivided algorithm within what `divided` was granted, so it can replace a division that is slow when run
    whole. `desirable` is the desirable set: the kernel's Pareto-optimal configurations, workspace ascending.
    If the solver chooses not to divide, `divided` equals `fallback`.

    `comparison` has the times of `undivided` and `divided`, run whole. `outrun` is the decision for the
    division with the best prediction, if another configuration replaced it after the whole runs.

    `shares` has a decision for each group of identical kernels with a configuration of their own; the count
    of its kernel is the size of the group. The shares of all kernels together divide a total faster than the
    decisions themselves. `shares` is empty if that makes no difference to the kernel.

    `is_busy` says that other programs disturbed too many runs of the comparison. Its times then decide
    nothing, and the kernel runs its fallback.

    `groups` of channels are faster than the choice: by their whole run, which took `groups_ms`, or by
    prediction if `groups_ms` is None.
    """

    kernel: Kernel
    desirable: tuple[Configuration, ...]
    undivided: Configuration | None
    divided: Configuration
    fallback: Configuration | None = None
    comparison: Comparison | None = None
    shares: tuple["Decision", ...] = ()
    is_busy: bool = False
    outrun: "Decision | None" = None
    groups: ChannelGroups | None = None
    groups_ms: float | None = None

    @property
    def best(self) -> Configuration | ChannelGroups:
        """The groups of channels, if they are faster than the choice; else the choice."""
        return self.groups or self.divided

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
        return self.comparison.divided_ms


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
    whole = {kernel: undivided_configurations(rows, kernel) for kernel, rows in wanted.items()}
    chosen, shares = _choose(desirable, limits, listener)
    undivided: dict[Kernel, Configuration] = {}
    undivided_shares: dict[Kernel, Shares] = {}
    if limits.total is not None:
        # If they do not fit the total, at least one kernel has no fallback, and so no undivided algorithm.
        with suppress(Infeasible):
            undivided, undivided_shares = _divide_total(whole, limits, None)

    def make(kernel: Kernel, choice: Configuration, undivided: Configuration | None) -> Decision:
        fallback = _last_within(whole[kernel], limits.granted(choice))
        return Decision(kernel, tuple(desirable[kernel]), undivided or fallback, choice, fallback)

    decisions = []
    for kernel, choice in chosen.items():
        together = undivided.get(kernel)
        # Pairs the configurations of identical kernels with their undivided algorithms.
        own = _repeat(shares.get(kernel, ()))
        whole_own = _repeat(undivided_shares.get(kernel, ((kernel.count, together),)))
        pairs = Counter(zip(own, whole_own, strict=False))
        apart = [make(replace(kernel, count=count), *pair) for pair, count in pairs.items()]
        differs = list(pairs) != [(choice, together)]
        decisions.append(replace(make(kernel, choice, together), shares=tuple(apart) if differs else ()))
    return decisions


def _repeat(shares: Iterable[tuple[int, T]]) -> Iterator[T]:
    """Yield the configuration of each of the identical kernels."""
    return chain.from_iterable(repeat(configuration, count) for count, configuration in shares)


def _choose(
    desirable: Mapping[Kernel, Sequence[Configuration]], limits: Limits, listener: Listener | None
) -> tuple[dict[Kernel, Configuration], dict[Kernel, Shares]]:
    """Return each kernel's choice, and the shares of all kernels if they are faster.

    Raises NothingFitsError.
    """
    for kernel, configurations in desirable.items():
        if not configurations:
            raise nothing_fits(kernel, configurations, None)
    if limits.total is not None:
        try:
            return _divide_total(desirable, limits, listener)
        except Infeasible:
            least = {kernel: kernel.count * front[0].workspace for kernel, front in desirable.items()}
            most = max(least, key=least.__getitem__)
            raise NothingFitsError(
                f"nothing fits {format_size(limits.total)} of workspace in total, the least that works is "
                f"{sum(least.values())} bytes, {least[most]} of them for {most}"
            ) from None
    chosen = {}
    for kernel, configurations in desirable.items():
        fastest = _last_within(configurations, limits.workspace)
        if fastest is None:
            raise nothing_fits(kernel, configurations, limits.workspace)
        chosen[kernel] = fastest
    return chosen, {}


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
    whole = [part for m in rows if m.is_undivided(kernel.mini_batch) and (part := m.part())]
    near = [
        part
        for part in whole
        if (limit is None or part.workspace <= limit) and part.time_ms <= LEAST_SPEEDUP * chosen.time_ms
    ]
    first = min(near, key=lambda part: (part.algorithm != STOCK, part.time_ms), default=None)
    return chosen if first is None else Configuration((first,))


def desirable_configurations(measured: Sequence[Measurement], kernel: Kernel) -> list[Configuration]:
    """Return the desirable set of a kernel: its Pareto-optimal configurations, workspace ascending."""
    return desirable_set(_combinable_parts(measured, kernel), kernel.mini_batch)


def fastest_configuration(
    measured: Sequence[Measurement], kernel: Kernel, limit: int | None
) -> Configuration | None:
    """Return the desirable set's fastest configuration within a limit without finding the rest of the set.

    Return None if nothing fits the limit.
    """
    with suppress(Infeasible):
        return reuse_workspace(_combinable_parts(measured, kernel), kernel.mini_batch, limit)
    return None


def _combinable_parts(measured: Sequence[Measurement], kernel: Kernel) -> list[MicroConfiguration]:
    """Return the micro-configurations that take no more slices than the kernel may have."""
    most = most_slices(kernel)
    parts = (m.part() for m in measured)
    return [part for part in parts if part is not None and part.micro_batch * most >= kernel.mini_batch]


def undivided_configurations(measured: Iterable[Measurement], kernel: Kernel) -> list[Configuration]:
    """Return the desirable set of the algorithms that run the whole mini-batch."""
    return desirable_configurations([m for m in measured if m.is_undivided(kernel.mini_batch)], kernel)


def _last_within(desirable: Sequence[Configuration], limit: int | None) -> Configuration | None:
    """Return the fastest configuration within a limit: the last one, because the time descends."""
    fitting = (c for c in reversed(desirable) if limit is None or c.workspace <= limit)
    return next(fitting, None)


def nothing_fits(kernel: Kernel, desirable: Sequence[Configuration], limit: int | None) -> NothingFitsError:
    """Return the error for a kernel none of whose configurations fits a limit."""
    if not desirable:
        return NothingFitsError(f"{kernel}: no algorithm runs at any of the measured micro-batch sizes")
    return NothingFitsError(
        f"{kernel}: nothing fits {format_size(limit)} of workspace, "
        f"the least that works is {desirable[0].workspace} bytes"
    )


def _divide_total(
    fronts: Mapping[Kernel, Sequence[Configuration]], limits: Limits, listener: Listener | None
) -> tuple[dict[Kernel, Configuration], dict[Kernel, Shares]]:
    """Choose by workspace division (WD): the configurations that are fastest together within the total.

    Returns one configuration for all identical kernels, and the shares of all kernels, if letting identical
    kernels differ is faster. Raises Infeasible.
    """
    assert limits.total is not None
    counts = {kernel: kernel.count for kernel in fronts}
    together = solve_division(fronts, limits.total, counts=counts, exact=limits.exact)
    if not together.reached and listener is not None:
        listener.message(
            f"The solver was stopped after {together.seconds:.0f} s at a gap of {together.gap:.2%}: "
            "another division of the total saves at most that much of the time"
        )
    is_fastest = all(together.choice[kernel] == front[-1] for kernel, front in fronts.items())
    if is_fastest or max(counts.values()) == 1:
        return together.choice, {}
    apart = solve_division(fronts, limits.total, counts=counts, apart=True, exact=limits.exact)
    is_faster = faster(_sum_times(apart.shares), _sum_times(together.shares))
    return together.choice, apart.shares if is_faster else {}


def _sum_times(shares: Mapping[Kernel, Shares]) -> float:
    return math.fsum(count * share.time_ms for each in shares.values() for count, share in each)
