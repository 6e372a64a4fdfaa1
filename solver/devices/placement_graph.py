"""The graph of a placement: operations, their dependencies, and their starts in an order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Operation:
    """An operation of a graph.

    Args:
        time_ms: milliseconds on any device.
        memory: bytes that its device must always hold, such as weights.

    Raises:
        ValueError: a figure is negative or not finite.
    """

    time_ms: float
    memory: int = 0

    def __post_init__(self) -> None:
        if not 0 <= self.time_ms < math.inf:
            raise ValueError(f"time_ms of an operation is {self.time_ms}, must be finite and not negative")
        if self.memory < 0:
            raise ValueError(f"memory of an operation is {self.memory}, must not be negative")


Edges = Mapping[tuple[int, int], float]
"""For each dependency (earlier, later), the milliseconds after which the result reaches another device."""


def find_sources(operations: Iterable[int], edges: Iterable[tuple[int, int]]) -> dict[int, list[int]]:
    """Return for each operation the earlier operations of its edges."""
    sources: dict[int, list[int]] = {operation: [] for operation in operations}
    for earlier, later in edges:
        sources[later].append(earlier)
    return sources


def sort_operations(count: int, edges: Edges, key: Callable[[int], Any] = lambda operation: 0) -> list[int]:
    """Return the operations in an order in which each follows those that it depends on.

    Of the operations that may come next, it takes the one with the least key, and of equals the first that
    was ready. Raises ValueError for a cycle, a missing operation, or a negative transfer.
    """
    after: dict[int, list[int]] = {i: [] for i in range(count)}
    missing = [0] * count
    for (earlier, later), milliseconds in edges.items():
        for operation in (earlier, later):
            if not 0 <= operation < count:
                raise ValueError(f"a dependency names operation {operation}; there are {count}, from 0")
        if not 0 <= milliseconds < math.inf:
            raise ValueError(
                f"the transfer from operation {earlier} to {later} takes {milliseconds} ms, "
                "must be finite and not negative"
            )
        after[earlier].append(later)
        missing[later] += 1
    ready = [i for i in range(count) if not missing[i]]
    order = []
    while ready:
        operation = min(ready, key=key)
        ready.remove(operation)
        order.append(operation)
        for later in after[operation]:
            missing[later] -= 1
            if not missing[later]:
                ready.append(later)
    if len(order) < count:
        circle = [i for i in range(count) if missing[i]]
        raise ValueError(f"the graph has a cycle through some of the operations {circle[:5]}")
    return order


def find_cuts(order: Sequence[int], edges: Edges) -> list[int]:
    """Return, in order, the operations that every other operation must run before or after."""
    before = find_reachable(order, edges)
    after = find_reachable(order[::-1], {(later, earlier): ms for (earlier, later), ms in edges.items()})
    everything = (1 << len(order)) - 1
    return [i for i in order if before[i] | after[i] | 1 << i == everything]


def find_chains(count: int, edges: Edges) -> list[list[int]]:
    """Return the operations in chains without branches, each after the chains that it depends on."""
    order = sort_operations(count, edges)
    before = find_sources(order, edges)
    after = find_sources(order, ((later, earlier) for earlier, later in edges))
    chains: list[list[int]] = []
    for i in order:
        if len(before[i]) == 1 and len(after[before[i][0]]) == 1:
            continue
        chains.append([i])
        while len(after[i]) == 1 and len(before[after[i][0]]) == 1:
            i = after[i][0]
            chains[-1].append(i)
    return chains


def find_reachable(order: Sequence[int], edges: Edges) -> dict[int, int]:
    """Return for each operation, as bits, the operations on which it depends, directly or indirectly."""
    reached = dict.fromkeys(order, 0)
    for i, sources in find_sources(order, edges).items():
        for earlier in sources:
            reached[i] |= reached[earlier] | 1 << earlier
    return reached


def simulate_placement(
    operations: Sequence[Operation], edges: Edges, devices: Sequence[int], order: Sequence[int]
) -> list[float]:
    """Return the starts if each device runs its operations in this order, each as early as possible."""
    incoming = find_sources(range(len(operations)), edges)
    starts, free = [0.0] * len(operations), dict.fromkeys(devices, 0.0)
    for i in order:
        arrivals = [
            starts[j] + operations[j].time_ms + (edges[j, i] if devices[j] != devices[i] else 0.0)
            for j in incoming[i]
        ]
        starts[i] = max([free[devices[i]], *arrivals])
        free[devices[i]] = starts[i] + operations[i].time_ms
    return starts
