"""Placement of a graph of operations on several equal devices, so that the last operation ends early.

A device runs one operation at a time. An operation starts when all operations that it depends on have ended
and, from other devices, their results have arrived. This is DLPlacer's model (Pal et al., "Optimizing
Multi-GPU Parallelization Strategies for Deep Learning Training", IEEE Micro 2019) as an integer linear
program.

The graph is cut at operations that depend on all earlier ones and that all later ones depend on, because on
equal devices the parts can be placed one by one without losing the optimum. So large networks are solvable,
although the program grows with the square of the operations that may run at the same time.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from ..forks import no_fork
from ..workspace.configuration import Infeasible
from .placement_graph import Edges, Operation, find_chains, find_cuts, simulate_placement, sort_operations

_TIME_LIMIT = 30.0  # seconds for all programs together, after which the best placement found counts


@dataclass(frozen=True, slots=True)
class Placement:
    """A device and a start for each operation.

    Attributes:
        devices: the device of each operation, from 0.
        starts_ms: the start of each operation.
        time_ms: the end of the last operation.
        bound_ms: the time before which no placement ends.
        programs: the integer linear programs that were solved.
    """

    devices: tuple[int, ...]
    starts_ms: tuple[float, ...]
    time_ms: float
    bound_ms: float
    programs: int

    @property
    def is_proven(self) -> bool:
        """True if the placement is known to be an optimum, within 1e-6."""
        return self.time_ms <= self.bound_ms * (1 + 1e-6) + 1e-9


def place(
    operations: Sequence[Operation],
    edges: Edges,
    devices: int,
    memory: int | None = None,
) -> Placement:
    """Place operations on devices and order them.

    Args:
        operations: the operations.
        edges: the dependencies between them, by index.
        devices: the number of devices.
        memory: the most bytes on each device; None for no limit.

    Raises:
        Infeasible: the operations do not fit the devices' memory.
        ValueError: the graph has a cycle or names a missing operation, a transfer is negative, or there is no
            device.
    """
    start = time.monotonic()
    if devices < 1:
        raise ValueError(f"devices is {devices}, must be at least 1")
    order = sort_operations(len(operations), edges)
    _check_memory(operations, devices, memory)
    # Tight memory may force operations apart, so that parts of the graph depend on each other.
    is_tight = memory is not None and sum(operation.memory for operation in operations) > memory
    cuts = [] if is_tight else [order.index(last) + 1 for last in find_cuts(order, edges)]
    parts = [order[a:b] for a, b in pairwise([0, *cuts, len(order)]) if a < b]
    placed = [0] * len(operations)
    starts = [0.0] * len(operations)
    now, bound, programs = 0.0, 0.0, 0
    gate: int | None = None  # the operation on which all of the part depend, which has ended
    known: dict[object, tuple[list[int], list[float], float, float]] = {}
    for i, part in enumerate(parts):
        chosen, index = tuple(operations[each] for each in part), {each: n for n, each in enumerate(part)}
        inner = {(index[a], index[b]): ms for (a, b), ms in edges.items() if a in index and b in index}
        arrival = {index[b]: ms for (a, b), ms in edges.items() if a == gate and b in index}
        key = chosen, frozenset(inner.items()), frozenset(arrival.items())
        if key not in known:  # a repeated block of a network is solved once
            left = _TIME_LIMIT - (time.monotonic() - start)
            share = max(left, 0.0) / (len(parts) - i)
            known[key] = _solve(chosen, inner, arrival, devices, memory, share)
            programs += len(part) > 1 and devices > 1
        where, when, length, least = known[key]
        # Equal devices may swap names, so the part's device 0 becomes the gate's.
        first = placed[gate] if gate is not None else 0
        names = [first, *(d for d in range(devices) if d != first)]
        for operation, device, at in zip(part, where, when, strict=True):
            placed[operation], starts[operation] = names[device], now + at
        now, bound = now + length, bound + least
        gate = part[-1]
    return Placement(tuple(placed), tuple(starts), now, bound, programs)


def place_chains(
    operations: Sequence[Operation], edges: Edges, devices: int, memory: int | None
) -> Placement:
    """Place operations that follow one another without a branch as one operation: see `place`.

    This is much faster but not exact, because nothing else can run in the middle of a chain. The placement's
    `bound_ms` is the bound of the merged graph.
    """
    chains = find_chains(len(operations), edges)
    merged = [
        Operation(math.fsum(operations[i].time_ms for i in chain), sum(operations[i].memory for i in chain))
        for chain in chains
    ]
    chain_of = {i: number for number, chain in enumerate(chains) for i in chain}
    between = {(chain_of[a], chain_of[b]): ms for (a, b), ms in edges.items() if chain_of[a] != chain_of[b]}
    placement = place(merged, between, devices, memory)
    starts = [0.0] * len(operations)
    for chain, at in zip(chains, placement.starts_ms, strict=True):
        for i in chain:
            starts[i] = at
            at += operations[i].time_ms
    placed = tuple(placement.devices[chain_of[i]] for i in range(len(operations)))
    return replace(placement, devices=placed, starts_ms=tuple(starts))


def _check_memory(operations: Sequence[Operation], devices: int, memory: int | None) -> None:
    if memory is None:
        return
    total = sum(operation.memory for operation in operations)
    largest = max((operation.memory for operation in operations), default=0)
    if total > memory * devices or largest > memory:
        need = max(largest, -(-total // devices))
        raise Infeasible(
            f"{len(operations)} operations need at least {need} bytes on each of {devices} devices, "
            f"and {memory} are allowed",
            limit=memory,
            need=need,
        )


def _solve(
    operations: Sequence[Operation],
    edges: Edges,
    arrival: Mapping[int, float],
    devices: int,
    memory: int | None,
    seconds: float,
) -> tuple[list[int], list[float], float, float]:
    """Return the devices and starts of a part's operations, its length, and a bound of it.

    The part starts when the operation on which all of it depend has ended, on device 0.
    """
    with no_fork:
        from .placement_ilp import solve  # imported late, because PuLP loads slowly

    if len(operations) == 1 or devices == 1:
        placed = [0] * len(operations)
        starts = simulate_placement(operations, edges, placed, range(len(operations)))
        length = math.fsum(operation.time_ms for operation in operations)
        return placed, starts, length, length
    return solve(operations, edges, arrival, devices, memory, seconds)
