"""A fast choice of the tensors that leave: the cheapest per byte first, until the training step fits.

An offloaded tensor costs nothing while all copies out take less time than the forward steps, and all copies
in less than the backward steps. Beyond that it costs the time of its copies. A recomputed tensor costs its
replay.
"""

from __future__ import annotations

import math

import numpy as np

from .simulation import KEEP, OFFLOAD, RECOMPUTE, Codes, Simulator


def choose_cheapest(
    simulator: Simulator, memory: int, start: Codes, *, offload: bool, recompute: bool, hidden: float
) -> Codes | None:
    """Return choices that fit the memory with the least workspaces, or None if these rules find none.

    More tensors leave than in `start`. `hidden` is the part of the work's time during which copies should
    cost nothing.
    """
    work, size = simulator.work, simulator.bytes
    smallest = np.zeros(len(work.kernels), dtype=np.int64)
    out, back = size / work.link.out_bandwidth * 1e3, size / work.link.in_bandwidth * 1e3
    replay_ms = simulator.replays_ms(smallest)
    turn = int(simulator.needs.min(initial=simulator.steps))
    steps = work.settle(work.least_workspace).steps
    codes = start.copy()
    copied = codes == OFFLOAD
    forward, backward = (math.fsum(step.time_ms for step in part) for part in (steps[:turn], steps[turn:]))
    budget_out = max(hidden * forward - float(out[copied].sum()), 0.0)
    budget_in = max(hidden * backward - float(back[copied].sum()), 0.0)
    host = math.inf if work.host_memory is None else work.host_memory - int(size[copied].sum())
    for _ in range(len(codes) + 1):
        required = simulator.profile(codes, smallest)
        worst = int(required.argmax()) if len(required) else 0
        if not len(required) or required[worst] <= memory:
            return codes
        is_idle = (codes == KEEP) & (size > 0) & (simulator.freed_from <= worst) & (worst < simulator.needs)
        cost, way = np.full(len(codes), math.inf), np.full(len(codes), OFFLOAD)
        if recompute:
            replayed = codes == RECOMPUTE
            is_bound = np.zeros(len(codes), dtype=bool)  # a source or a result is computed again
            is_bound[simulator.readers[replayed[simulator.sources]]] = True
            is_bound[simulator.sources[replayed[simulator.readers]]] = True
            can = is_idle & simulator.can_return & ~is_bound
            cost[can], way[can] = replay_ms[can], RECOMPUTE
        if offload:
            exposed = np.maximum(out - budget_out, 0.0) + np.maximum(back - budget_in, 0.0)
            can = is_idle & (size <= host) & (exposed < cost)
            cost[can], way[can] = exposed[can], OFFLOAD
        able = np.flatnonzero(cost < math.inf)
        if not len(able):
            return None
        order = np.lexsort((able, -size[able], cost[able] / np.maximum(size[able], 1)))
        i = int(able[order[0]])
        codes[i] = way[i]
        if way[i] == OFFLOAD:
            budget_out = max(budget_out - float(out[i]), 0.0)
            budget_in = max(budget_in - float(back[i]), 0.0)
            host -= int(size[i])
    return None
