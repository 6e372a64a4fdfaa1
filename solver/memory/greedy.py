"""A fast choice of the tensors that leave: the cheapest per byte first, until the training step fits.

An offloaded tensor costs the time of its copies, and a recomputed one that of its replay.
"""

from __future__ import annotations

import math

import numpy as np

from .simulation import KEEP, OFFLOAD, RECOMPUTE, Codes, Simulator


def choose_cheapest(
    simulator: Simulator, memory: int, start: Codes, *, offload: bool, recompute: bool
) -> Codes | None:
    """Return choices that fit the memory with the least workspaces, or None if these rules find none.

    More tensors leave than in `start`.
    """
    work, size = simulator.work, simulator.bytes
    smallest = np.zeros(len(work.kernels), dtype=np.int64)
    copies_ms = work.link.milliseconds(size)
    replay_ms = simulator.replays_ms(smallest)
    codes = start.copy()
    host = math.inf if work.host_memory is None else work.host_memory - int(size[codes == OFFLOAD].sum())
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
            can = is_idle & (size <= host) & (copies_ms < cost)
            cost[can], way[can] = copies_ms[can], OFFLOAD
        able = np.flatnonzero(cost < math.inf)
        if not len(able):
            return None
        order = np.lexsort((able, -size[able], cost[able] / np.maximum(size[able], 1)))
        i = int(able[order[0]])
        codes[i] = way[i]
        if way[i] == OFFLOAD:
            host -= int(size[i])
    return None
