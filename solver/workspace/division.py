"""Workspace division (WD): the kernels of a network share one total of workspace, in parts of their own."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeAlias, TypeVar

from ..forks import no_fork
from .choice import Answer, Options, Solver
from .configuration import TIE, Configuration, Infeasible, pareto_front

GAP = 1e-4  # the default for the relative gap at which a solver stops
TIME_LIMIT = 30.0  # seconds, by default
MOST_COPIES = 64  # groups of identical kernels that may differ; with more, the search is long for little gain

K = TypeVar("K", bound=Hashable)

Shares: TypeAlias = tuple[tuple[int, Configuration], ...]
"""How many of a number of identical kernels take which configuration."""


@dataclass(frozen=True, slots=True)
class WorkspaceDivision(Generic[K]):
    """A division of the total workspace among kernels.

    Attributes:
        choice: every kernel's configuration, in the order of the input. If identical kernels differ, it is
            the most frequent configuration, or of equally frequent ones the one with less workspace.
        shares: for every kernel, its configurations with the number of identical kernels that take each,
            workspace descending. The numbers add up to the kernel's count.
        gap: no division takes less than (1 - gap) of this one's time; 0 within 1e-12.
        reached: True if the gap is within the requested one; False if the solvers ran out of time.
        solver: the solver that found it, "highs" or "exact"; "none" if the fastest configurations that each
            kernel can afford alone fit together.
        seconds: the time that the solvers took.
    """

    choice: dict[K, Configuration]
    shares: dict[K, Shares]
    gap: float
    reached: bool
    solver: str
    seconds: float


# Imported late, because they need numpy, which loads slowly and which workspace reuse does not need.
def _solve_by_highs(options: Sequence[Options], capacity: int, gap: float, time_limit: float) -> Answer:
    with no_fork:
        from . import ilp

    return ilp.solve(options, capacity, gap, time_limit)


def _solve_exactly(options: Sequence[Options], capacity: int, gap: float, time_limit: float) -> Answer:
    with no_fork:
        from . import exact

    return exact.solve(options, capacity, gap, time_limit)


# Dynamic programming is faster. The integer linear program follows where it runs out of time.
SOLVERS: dict[str, Solver] = {"exact": _solve_exactly, "highs": _solve_by_highs}


def divide_workspace(
    kernels: Mapping[K, Sequence[Configuration]],
    total: int,
    *,
    counts: Mapping[K, int] | None = None,
    exact: bool = False,
) -> dict[K, Configuration]:
    """Return the choice that `solve_division` makes: one configuration of each kernel, within a total."""
    return solve_division(kernels, total, counts=counts, exact=exact).choice


def solve_division(
    kernels: Mapping[K, Sequence[Configuration]],
    total: int,
    *,
    counts: Mapping[K, int] | None = None,
    apart: bool = False,
    exact: bool = False,
    time_limit: float = TIME_LIMIT,
) -> WorkspaceDivision[K]:
    """Choose one configuration of each kernel so that all workspaces together fit a total (WD).

    It minimises the sum over the kernels of count x time; the sum of count x workspace is at most the total,
    which is checked in whole bytes for every solver. The answer does not depend on the input's order.

    Args:
        kernels: each kernel's configurations, in any order; only Pareto-optimal ones are chosen.
        total: bytes for all kernels together.
        counts: the number of identical kernels that each kernel stands for; 1 by default.
        apart: let identical kernels get different configurations, which uses a small total better. More than
            `MOST_COPIES` identical kernels are divided into that many groups, each with one configuration.
        exact: find the optimum (within 1e-12) instead of an answer within 1e-4 of it, both relative.
        time_limit: seconds for each solver, after which its best answer counts.

    Raises:
        Infeasible: the least workspaces do not fit. Its `need` is their sum, or None if a kernel has no
            configuration.
        ValueError: a count is less than 1 or is given for no kernel.
    """
    with no_fork:
        from .relaxation import find_worthwhile

    start = time.monotonic()
    weights = _check_counts(kernels, counts)
    fronts = {kernel: _find_front(configurations) for kernel, configurations in kernels.items()}
    capacity = total - _sum_least(fronts, weights, total)
    groups = [(k, size) for k in kernels for size in (_split(weights[k]) if apart else [weights[k]])]
    choices = [_keep_affordable(fronts[kernel], capacity // size) for kernel, size in groups]
    problem = [_make_options(front, size) for front, (_, size) in zip(choices, groups, strict=True)]

    if sum(int(options.workspace[-1]) for options in problem) <= capacity:
        taken = [front[-1] for front in choices]
        return _describe(kernels, groups, taken, 0.0, True, "none", time.monotonic() - start)

    order = sorted(
        range(len(problem)),
        key=lambda i: (problem[i].workspace.tolist(), problem[i].time.tolist(), repr(groups[i])),
    )
    kept = find_worthwhile([problem[i] for i in order], capacity)
    capacity -= sum(int(problem[i].workspace[indices[0]]) for i, indices in zip(order, kept, strict=True))
    options = [problem[i].take(indices) for i, indices in zip(order, kept, strict=True)]
    gap_asked = 0.0 if exact else GAP
    chosen: list[int] | None = None
    best, bound, winner = math.inf, 0.0, ""
    for name, solve in SOLVERS.items():
        answer = solve(options, capacity, gap_asked, time_limit)
        bound = max(bound, answer.bound)
        if answer.choice is not None:
            pairs = list(zip(options, answer.choice, strict=True))
            milliseconds = math.fsum(o.time[i] for o, i in pairs)
            if milliseconds < best and sum(int(o.workspace[i]) for o, i in pairs) <= capacity:
                chosen, best, winner = answer.choice, milliseconds, name
        gap = max(0.0, 1 - bound / best)
        if chosen is not None and gap <= gap_asked + 2 * TIE:
            break
    assert chosen is not None  # dynamic programming always finds a choice
    index = {i: int(indices[option]) for i, indices, option in zip(order, kept, chosen, strict=True)}
    taken = [front[index[i]] for i, front in enumerate(choices)]
    reached = gap <= gap_asked + 2 * TIE
    seconds = time.monotonic() - start
    return _describe(kernels, groups, taken, gap if gap > 2 * TIE else 0.0, reached, winner, seconds)


def _split(count: int) -> list[int]:
    """Return the sizes of the groups of `count` identical kernels; few kernels form groups of one."""
    groups = min(count, MOST_COPIES)
    return [(count + i) // groups for i in range(groups)]


def _describe(
    kernels: Mapping[K, object],
    groups: Sequence[tuple[K, int]],
    taken: Sequence[Configuration],
    gap: float,
    reached: bool,
    solver: str,
    seconds: float,
) -> WorkspaceDivision[K]:
    """Return the division in which each group of identical kernels takes its configuration."""
    numbers: dict[K, Counter[Configuration]] = {kernel: Counter() for kernel in kernels}
    for (kernel, size), configuration in zip(groups, taken, strict=True):
        numbers[kernel][configuration] += size
    shares = {
        kernel: tuple(sorted(((n, c) for c, n in counts.items()), key=lambda share: -share[1].workspace))
        for kernel, counts in numbers.items()
    }
    # `max` takes the first of equally frequent configurations, which has the least workspace in this order.
    choice = {
        kernel: max(reversed(counts), key=lambda share: share[0])[1] for kernel, counts in shares.items()
    }
    return WorkspaceDivision(choice, shares, gap, reached, solver, seconds)


def _check_counts(kernels: Mapping[K, object], counts: Mapping[K, int] | None) -> dict[K, int]:
    """Return the count of each kernel. Raises ValueError for a wrong count."""
    counts = counts or {}
    for kernel, count in counts.items():
        if kernel not in kernels:
            raise ValueError(f"a count of {count} is given for {kernel!r}, which is none of the kernels")
        if count < 1:
            raise ValueError(f"the count of {kernel!r} is {count}, must be at least 1")
    return {kernel: counts.get(kernel, 1) for kernel in kernels}


def _find_front(configurations: Sequence[Configuration]) -> list[Configuration]:
    """Return the Pareto-optimal configurations, workspace ascending.

    Of equal ones, the one with fewer parts stays, then the one with larger parts first.
    """

    def preference(c: Configuration) -> tuple[object, ...]:
        parts = [(-part.micro_batch, part.workspace, part.algorithm) for part in c.parts]
        return c.workspace, c.time_ms, len(parts), parts

    return pareto_front(sorted(configurations, key=preference))


def _sum_least(fronts: Mapping[K, Sequence[Configuration]], weights: Mapping[K, int], total: int) -> int:
    """Return the bytes that the kernels need at least. Raises Infeasible if the total is less."""
    for kernel, front in fronts.items():
        if not front:
            raise Infeasible(f"kernel {kernel!r} has no configuration at all", limit=total, need=None)
    need = sum(weights[kernel] * front[0].workspace for kernel, front in fronts.items())
    if need > total:
        raise Infeasible(
            f"{len(fronts)} kernels do not fit {total} bytes of workspace in total: "
            f"the least that they need together is {need} bytes",
            limit=total,
            need=need,
        )
    return need


def _keep_affordable(front: list[Configuration], spare: int) -> list[Configuration]:
    """Return the configurations that fit if all other kernels take their least workspace."""
    return [c for c in front if c.workspace - front[0].workspace <= spare]


def _make_options(front: Sequence[Configuration], weight: int) -> Options:
    with no_fork:
        import numpy as np

    least = front[0].workspace
    return Options(
        np.array([weight * (c.workspace - least) for c in front], dtype=np.int64),
        np.array([weight * c.time_ms for c in front], dtype=np.float64),
    )
