"""The events of a memory plan: the packs and unpackings at which a running program frees and fetches tensors.

PyTorch's allocator follows the order in which the host frees and allocates memory. Because the host runs
ahead of the device, the device's time does not matter. A program can act only when autograd packs or unpacks
a tensor, so each release and each fetch of a plan belongs to such an event, and the events alone determine
the memory of each step.
"""

import bisect
from typing import NamedTuple

import numpy as np

from mucudnn.plans.memory.traced import Trace
from mucudnn.solver.memory.simulation import Simulator, encode
from mucudnn.solver.memory.timeline import MemoryDecision, Timeline
from mucudnn.solver.memory.training import TrainingStep


class Events(NamedTuple):
    """The packs at which an offloaded tensor is released and fetched; None for the first unpacking of all."""

    release: int | None
    fetch: int | None


def released_at(timeline: Timeline, tensor: int) -> int:
    """Return the first step that starts after the copy out has ended."""
    end = max(copy.end_ms for copy in timeline.copies if copy.tensor == tensor and copy.direction == "out")
    return bisect.bisect_left(timeline.starts_ms, end)


def fetched_at(timeline: Timeline, tensor: int) -> int:
    """Return the step that runs, or starts next, when the copy in begins."""
    start = min(copy.start_ms for copy in timeline.copies if copy.tensor == tensor and copy.direction == "in")
    return bisect.bisect_right(timeline.ends_ms, start)


def find_events(
    trace: Trace, work: TrainingStep, decision: MemoryDecision, memory: int
) -> tuple[dict[int, Events], list[int]]:
    """Return the events of each offloaded tensor, and the bytes in memory during each step.

    A copy is moved to a later event, and a release to an earlier one, if a step would not fit otherwise. The
    bytes are counted in the order of the host.
    """
    simulator, codes = Simulator(work), encode(decision.choices)
    workspace = simulator.workspace(codes, np.array(decision.configurations, dtype=np.int64))
    freed_from, needs = simulator.freed_from, simulator.needing_steps(codes)
    gone, back = freed_from.copy(), needs.copy()  # the steps from which a tensor is gone, and is back
    planned: dict[int, Events] = {}
    first_packs = [packs[0] for _, packs in trace.saved.values()]

    def place(i: int, events: Events) -> None:
        planned[i] = events
        released = trace.turn if events.release is None else trace.packed_at[events.release]
        fetched = trace.turn if events.fetch is None else trace.unpacked_at[events.fetch]
        gone[i], back[i] = max(released, freed_from[i]), min(fetched, needs[i])

    for i, choice in enumerate(decision.choices):
        if choice == "offload":
            release = _find_release(trace, first_packs[i], released_at(decision.timeline, i))
            place(i, Events(release, _find_fetch(trace, needs[i], fetched_at(decision.timeline, i))))
    for step, size in enumerate(simulator.held(codes, gone, back) + workspace):
        over = size - memory
        for i, events in planned.items():
            if over <= 0:
                break
            before = gone[i], back[i]
            if freed_from[i] <= step < gone[i]:
                place(i, events._replace(release=_find_release(trace, first_packs[i], step)))
            elif back[i] <= step < needs[i]:
                place(i, events._replace(fetch=_find_fetch(trace, needs[i], step + 1)))
            if before != (gone[i], back[i]):
                over -= simulator.bytes[i]
    return planned, (simulator.held(codes, gone, back) + workspace).tolist()


def _find_release(trace: Trace, first: int, step: int) -> int | None:
    """Return the last pack after the first one and before a step begins; None after the forward steps."""
    packs = [pack for pack, at in enumerate(trace.packed_at) if pack > first and at <= step]
    return packs[-1] if packs and step < trace.turn else None


def _find_fetch(trace: Trace, need: int, step: int) -> int | None:
    """Return the first pack that is unpacked at or after a step, or None for the first of all."""
    if step <= trace.turn:
        return None
    return next(pack for pack, at in trace.unpacked_at.items() if at >= min(step, need))
