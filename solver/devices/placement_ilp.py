"""The integer linear program of a placement, through PuLP with HiGHS.

Binaries choose the device of each operation and, for two operations that do not depend on each other, which
goes first if they share a device. Starts are continuous.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np

from ..forks import no_fork
from ..highs import make_solver
from ..workspace.configuration import Infeasible
from .placement_graph import (
    Edges,
    Operation,
    find_reachable,
    find_sources,
    simulate_placement,
    sort_operations,
)

Solution = tuple[list[int], list[float], float, float]


def solve(
    operations: Sequence[Operation],
    edges: Edges,
    arrival: Mapping[int, float],
    devices: int,
    memory: int | None,
    seconds: float,
) -> Solution:
    """Return the devices and starts of operations, the end of the last one, and a bound of it.

    Args:
        operations: the operations, each after those that it depends on.
        edges: the dependencies, by index.
        arrival: the milliseconds after which an operation may start on another device than device 0.
        devices: the number of devices, at least 2.
        memory: the most bytes on each device; None for no limit.
        seconds: the time limit, after which the best placement found counts.

    Raises:
        Infeasible: no placement fits the memory, or none was found in time.
    """
    with no_fork:
        import pulp  # imported late, because it loads slowly

    count = len(operations)
    times = [operation.time_ms for operation in operations]
    greedy = _place_greedily(operations, edges, arrival, devices, memory)
    horizon = (
        max((s + t for s, t in zip(greedy[1], times, strict=True)), default=0.0)
        if greedy
        else (math.fsum(times) + math.fsum(edges.values()) + math.fsum(arrival.values()))
    )
    if horizon == 0.0:
        return [0] * count, [0.0] * count, 0.0, 0.0
    # HiGHS's tolerances are absolute, so times count in thousandths of the horizon.
    unit = horizon / 1e3
    most = horizon / unit
    problem = pulp.LpProblem("placement", pulp.LpMinimize)
    end = problem.add_variable("end", 0, most)
    start = [problem.add_variable(f"s{i}", 0, most) for i in range(count)]
    on = [
        [problem.add_variable(f"x{i}_{d}", cat=pulp.LpBinary) for d in range(devices)] for i in range(count)
    ]
    problem += end
    for i in range(count):
        problem += pulp.lpSum(on[i]) == 1
        problem += end >= start[i] + times[i] / unit
    for d in range(devices):
        # This is not needed for a correct answer, but tightens the relaxation.
        problem += end >= pulp.lpSum(times[i] / unit * on[i][d] for i in range(count))
        if memory is not None:
            total = max(1, sum(operation.memory for operation in operations))
            problem += (
                pulp.lpSum(operations[i].memory / total * on[i][d] for i in range(count)) <= memory / total
            )
    for i, ms in arrival.items():
        problem += start[i] >= ms / unit * (1 - on[i][0])
    # Forbid placements that differ only in names: device d must follow an operation on device d-1. If results
    # arrive from the gate, device 0 is the gate's, so it cannot swap names with another device.
    for d in range(2 if arrival else 1, devices):
        for i in range(count):
            problem += on[i][d] <= pulp.lpSum(on[k][d - 1] for k in range(i))
    if not arrival:
        problem += on[0][0] == 1
    for (i, j), ms in edges.items():
        problem += start[j] >= start[i] + times[i] / unit
        if ms:
            for d in range(devices):
                problem += start[j] >= start[i] + (times[i] + ms * (on[i][d] - on[j][d])) / unit
    reached = find_reachable(range(count), edges)
    for i, j in itertools.combinations(range(count), 2):
        if reached[j] >> i & 1 or not times[i] or not times[j]:
            continue
        first = problem.add_variable(f"o{i}_{j}", cat=pulp.LpBinary)
        for d in range(devices):
            apart = 2 - on[i][d] - on[j][d]
            problem += start[j] >= start[i] + times[i] / unit - (most + times[i] / unit) * (1 - first + apart)
            problem += start[i] >= start[j] + times[j] / unit - (most + times[j] / unit) * (first + apart)
    problem.solve(make_solver(mip_rel_gap=1e-7, mip_abs_gap=1e-6, time_limit=max(seconds, 0.1)))
    bound = max(0.0, float(problem.solverModel.getInfo().mip_dual_bound)) * unit
    candidates = [greedy] if greedy else []
    if problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        where = [int(np.argmax([x.value() for x in row])) for row in on]
        order = sort_operations(count, edges, lambda i: (start[i].value(), i))
        # HiGHS's own starts are rounded. The gate is another operation, which takes no time, on device 0.
        extended = {**edges, **{(count, i): ms for i, ms in arrival.items()}}
        graph = [*operations, Operation(0.0)]
        candidates.append((where, simulate_placement(graph, extended, [*where, 0], [count, *order])[:count]))
    if not candidates:
        raise Infeasible("no placement that fits the memory was found", limit=memory, need=None)
    lengths = [max(s + t for s, t in zip(starts, times, strict=True)) for _, starts in candidates]
    best = min(range(len(candidates)), key=lengths.__getitem__)
    return *candidates[best], lengths[best], min(bound, lengths[best])


def _place_greedily(
    operations: Sequence[Operation],
    edges: Edges,
    arrival: Mapping[int, float],
    devices: int,
    memory: int | None,
) -> tuple[list[int], list[float]] | None:
    """Return a placement of each operation on the device where it ends first, or None if none fits."""
    incoming = find_sources(range(len(operations)), edges)
    where: list[int] = []
    starts: list[float] = []
    free, held = [0.0] * devices, [0] * devices
    for i, operation in enumerate(operations):
        choices = []
        for d in range(devices):
            if memory is not None and held[d] + operation.memory > memory:
                continue
            ready = [
                starts[j] + operations[j].time_ms + (edges[j, i] if where[j] != d else 0.0)
                for j in incoming[i]
            ]
            choices.append((max([free[d], arrival.get(i, 0.0) if d else 0.0, *ready]), d))
        if not choices:
            return None
        at, device = min(choices)
        where.append(device)
        starts.append(at)
        free[device] = at + operation.time_ms
        held[device] += operation.memory
    return where, starts
