"""Workspace reuse (WR): divide one kernel's mini-batch under a limit; and its desirable set.

A configuration's workspace is the maximum over its parts, so every Pareto-optimal configuration sits at a
measured workspace: it is the fastest one of those made of micro-configurations that need no more. Going
through the micro-configurations with workspace ascending, each new one is one more item of an unbounded
knapsack, T(n) = min(T(n), t + T(n - b)), so that a threshold costs O(N log N) and not a whole new DP.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Any

import numpy as np

from .configuration import TIE, Configuration, Infeasible, MicroConfiguration, faster, pareto_front


def desirable_set(
    measured: Iterable[MicroConfiguration], mini_batch: int, *, limit: int | None = None
) -> list[Configuration]:
    """Find the Pareto-optimal configurations of one kernel, time against workspace, exactly.

    Of configurations of equal time (within 1e-12 relative) the one with less workspace stays, then the one
    with fewer parts, then the one with larger parts first. Parts are listed with sizes descending.

    Args:
        measured: the kernel's micro-configurations in any order; sizes above the mini-batch are ignored.
        mini_batch: the size to be divided, at least 1.
        limit: the most bytes of workspace; None for no limit.

    Returns:
        Configurations with workspace ascending and time strictly descending; empty where nothing fits.

    Raises:
        ValueError: the mini-batch is less than 1, or an algorithm was given twice at one size.
    """
    if mini_batch < 1:
        raise ValueError(f"mini_batch is {mini_batch}, must be at least 1")
    knapsack = _Knapsack(mini_batch)
    kept: list[Configuration] = []
    fastest = np.inf
    for _, items in groupby(_useful(measured, mini_batch, limit), key=lambda item: item.workspace):
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
        The fastest configuration; of equal ones the first by the rules of `desirable_set`.

    Raises:
        Infeasible: nothing fits the limit; its `need` is the least limit that something fits.
        ValueError: as for `desirable_set`.
    """
    measured = list(measured)
    fitting = desirable_set(measured, mini_batch, limit=limit)
    if fitting:
        return fitting[-1]
    without_limit = desirable_set(measured, mini_batch)
    if not without_limit:
        sizes = sorted({item.micro_batch for item in measured})
        raise Infeasible(
            f"no configuration for mini-batch {mini_batch}: the measured sizes {sizes} do not add to it",
            limit=limit,
            need=None,
        )
    need = without_limit[0].workspace
    raise Infeasible(
        f"no configuration for mini-batch {mini_batch} within {limit} bytes of workspace: "
        f"the least that any needs is {need} bytes",
        limit=limit,
        need=need,
    )


def _useful(
    measured: Iterable[MicroConfiguration], mini_batch: int, limit: int | None
) -> list[MicroConfiguration]:
    """Return the Pareto-optimal ones of each size, workspace ascending, in the same order for any input's."""
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


class _Knapsack:
    """The fastest way to fill every size 0..N with the micro-configurations added so far.

    `_time` and `_parts`, indexed by size, hold the least time and the fewest parts that take that time;
    `_single` the time of the size as one part, from the micro-configuration in `_item`.
    """

    def __init__(self, mini_batch: int) -> None:
        self._time = np.full(mini_batch + 1, np.inf)
        self._time[0] = 0.0
        self._parts = np.zeros(mini_batch + 1, dtype=np.int64)
        self._single = np.full(mini_batch + 1, np.inf)
        self._item: dict[int, MicroConfiguration] = {}

    @property
    def fastest(self) -> float:
        """The least time for the whole mini-batch; infinite where its size cannot be reached."""
        return float(self._time[-1])

    def add(self, item: MicroConfiguration) -> None:
        """Take in a micro-configuration that is faster than those of its size so far."""
        size = item.micro_batch
        if item.time_ms > self._time[size] * (1 + TIE):
            return  # a division of this size is faster and needs no more workspace
        self._single[size] = item.time_ms
        self._item[size] = item
        copies = 1  # doubled, so that 2^k - 1 copies at most are in after k steps
        while copies * size < len(self._time):
            shift = copies * size
            time, parts = self._time[shift:], self._parts[shift:]
            new_time = self._time[:-shift] + copies * item.time_ms
            new_parts = self._parts[:-shift] + copies
            better = new_time < time * (1 - TIE)
            better |= (new_time <= time * (1 + TIE)) & (new_parts < parts)
            np.copyto(parts, new_parts, where=better)
            np.minimum(time, new_time, out=time)
            copies *= 2

    def configuration(self) -> Configuration:
        """Return the fastest configuration of the whole mini-batch: fewest parts, then larger parts first."""
        chosen: list[MicroConfiguration] = []
        left = len(self._time) - 1
        while left:
            size = self._next_part(left)
            chosen.append(self._item[size])
            left -= size
            # The largest part of what was left stays the largest as long as it can be taken at all.
            while left >= size and self._parts[left - size] < self._parts[left] and self._optimal(size, left):
                chosen.append(self._item[size])
                left -= size
        chosen.sort(key=lambda item: -item.micro_batch)
        return Configuration(tuple(chosen))

    def _next_part(self, left: int) -> int:
        sizes = np.arange(left, 0, -1)
        sizes = sizes[self._optimal(sizes, left)]
        return int(sizes[self._parts[left - sizes].argmin()])  # the first of equals, so the largest

    def _optimal(self, sizes: Any, left: int) -> Any:
        """Whether a part of each of these sizes (a number or an array) is in a fastest way to fill `left`."""
        return self._single[sizes] + self._time[left - sizes] <= self._time[left] * (1 + TIE)
