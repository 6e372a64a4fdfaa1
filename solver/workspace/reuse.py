"""Workspace reuse (WR): the division of one kernel's mini-batch under a limit, and its desirable set.

The desirable set is the set of Pareto-optimal configurations, time against workspace. Because a
configuration's workspace is the maximum over its parts, a Pareto-optimal one has the workspace of a measured
micro-configuration, and is the fastest whose parts need no more. The search goes through the
micro-configurations with workspace ascending and adds each to an unbounded knapsack,
T(n) = min(T(n), t + T(n - b)), which costs O(N) per item, much less than a new dynamic program. Workspace
reuse within one limit needs only the fastest item of each size.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import groupby

from .configuration import Configuration, Infeasible, MicroConfiguration, faster, pareto_front
from .knapsack import Knapsack


def desirable_set(
    measured: Iterable[MicroConfiguration], mini_batch: int, *, limit: int | None = None
) -> list[Configuration]:
    """Find the Pareto-optimal configurations of one kernel, time against workspace, exactly.

    Of configurations with equal times (within 1e-12 relative), the one with less workspace stays, then the
    one with fewer parts, then the one with larger parts first. The parts are sorted by size, descending.

    Args:
        measured: the kernel's micro-configurations in any order; sizes above the mini-batch are ignored.
        mini_batch: the size to divide, at least 1.
        limit: the most bytes of workspace; None for no limit.

    Returns:
        The configurations, workspace ascending and time strictly descending; empty if nothing fits.

    Raises:
        ValueError: the mini-batch is less than 1, or an algorithm occurs twice at one size.
    """
    _check_mini_batch(mini_batch)
    useful = _keep_useful(measured, mini_batch, limit)
    knapsack = Knapsack(mini_batch)
    kept: list[Configuration] = []
    fastest = math.inf
    for _, items in groupby(useful, key=lambda item: item.workspace):
        for item in items:
            knapsack.add(item)
        if faster(knapsack.fastest, fastest):
            kept.append(knapsack.configuration())
            fastest = kept[-1].time_ms
    return kept


def reuse_workspace(
    measured: Iterable[MicroConfiguration], mini_batch: int, limit: int | None
) -> Configuration:
    """Find the fastest configuration of one kernel within a limit (WR).

    Args:
        measured: as for `desirable_set`.
        mini_batch: as for `desirable_set`.
        limit: the most bytes of workspace; None for no limit.

    Returns:
        The fastest configuration; of equal ones, the one that `desirable_set` keeps.

    Raises:
        Infeasible: nothing fits the limit; its `need` is the least limit that a configuration fits.
        ValueError: as for `desirable_set`.
    """
    measured = list(measured)
    _check_mini_batch(mini_batch)
    fastest = _find_fastest(_keep_useful(measured, mini_batch, limit), mini_batch)
    if fastest is not None:
        return fastest
    without_limit = desirable_set(measured, mini_batch)
    if not without_limit:
        sizes = sorted({item.micro_batch for item in measured})
        raise Infeasible(
            f"no configuration for mini-batch {mini_batch}: the measured sizes {sizes} do not add up to it",
            limit=limit,
            need=None,
        )
    need = without_limit[0].workspace
    raise Infeasible(
        f"no configuration for mini-batch {mini_batch} within {limit} bytes of workspace: "
        f"the least that one needs is {need} bytes",
        limit=limit,
        need=need,
    )


def _check_mini_batch(mini_batch: int) -> None:
    if mini_batch < 1:
        raise ValueError(f"mini_batch is {mini_batch}, must be at least 1")


def _find_fastest(useful: list[MicroConfiguration], mini_batch: int) -> Configuration | None:
    """Return the last configuration of the desirable set without finding the others, or None.

    Only the fastest micro-configuration of each size matters. Because an equally fast configuration may need
    less workspace, the search repeats below the workspace that it found until the time grows.
    """
    best: Configuration | None = None
    while useful:
        fastest = {item.micro_batch: item for item in useful}  # items of one size have time descending
        knapsack = Knapsack(mini_batch)
        for item in fastest.values():
            knapsack.add(item)
        if knapsack.fastest == math.inf or (best is not None and faster(best.time_ms, knapsack.fastest)):
            break
        best = knapsack.configuration()
        useful = [item for item in useful if item.workspace < best.workspace]
    return best


def _keep_useful(
    measured: Iterable[MicroConfiguration], mini_batch: int, limit: int | None
) -> list[MicroConfiguration]:
    """Return the Pareto-optimal micro-configurations of each size, workspace ascending, in a fixed order."""
    seen: set[tuple[int, str]] = set()
    candidates: list[MicroConfiguration] = []
    for item in measured:
        key = (item.micro_batch, item.algorithm)
        if key in seen:
            raise ValueError(f"algorithm {item.algorithm} is given twice at micro-batch {item.micro_batch}")
        seen.add(key)
        if item.micro_batch <= mini_batch and (limit is None or item.workspace <= limit):
            candidates.append(item)
    candidates.sort(key=lambda item: (item.micro_batch, item.workspace, item.time_ms, item.algorithm))
    useful: list[MicroConfiguration] = []
    for _, same_size in groupby(candidates, key=lambda item: item.micro_batch):
        useful += pareto_front(same_size)
    useful.sort(key=lambda item: (item.workspace, item.micro_batch))
    return useful
