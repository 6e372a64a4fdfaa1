"""The events of a memory plan: the packs and unpackings at which a running program frees and fetches tensors.

PyTorch's allocator follows the order in which the host frees and allocates memory. Because the host runs
ahead of the device, the device's time does not matter. A program can act only when autograd packs or unpacks
a tensor, so each release and each fetch of a plan belongs to such an event, and the events alone determine
the memory of each step.
"""

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

from mucudnn.plans.memory.traced import Saved, Trace
from mucudnn.solver.memory.timeline import Timeline
from mucudnn.solver.memory.training import Choice, Run, SavedTensor, first_needs


@dataclass
class Events:
    """The steps from which an offloaded tensor is gone and is back, and the packs that are the events.

    A `release` or `fetch` of None is the first unpacking of all.
    """

    gone_from: int
    back_from: int
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
    trace: Trace,
    tensors: Sequence[SavedTensor],
    choices: Sequence[Choice],
    runs: Sequence[Run],
    timeline: Timeline,
    memory: int,
) -> tuple[dict[int, Events], list[int]]:
    """Return the events of each offloaded tensor, and the bytes in memory during each step.

    A copy is moved to a later event, and a release to an earlier one, if a step would not fit otherwise.
    """
    needs = first_needs(tensors, choices)
    planned: dict[int, Events] = {}
    for i, choice in enumerate(choices):
        if choice == "offload":
            release = _find_release(trace, trace.saved[i], released_at(timeline, i))
            fetch = _find_fetch(trace, needs[i], fetched_at(timeline, i))
            planned[i] = Events(*_steps(trace, tensors[i], release, fetch, needs[i]), release, fetch)
    held = _count_bytes(tensors, choices, runs, planned, needs)
    for step, size in enumerate(held):
        over = size - memory
        for i, events in planned.items():
            if over <= 0:
                break
            if tensors[i].last_forward_use < step < events.gone_from:
                events.release = _find_release(trace, trace.saved[i], step)
            elif events.back_from <= step < needs[i]:
                events.fetch = _find_fetch(trace, needs[i], step + 1)
            else:
                continue
            before = events.gone_from, events.back_from
            events.gone_from, events.back_from = _steps(
                trace, tensors[i], events.release, events.fetch, needs[i]
            )
            if before != (events.gone_from, events.back_from):
                over -= tensors[i].bytes
    return planned, _count_bytes(tensors, choices, runs, planned, needs)


def _steps(
    trace: Trace, tensor: SavedTensor, release: int | None, fetch: int | None, need: int
) -> tuple[int, int]:
    """Return the step from which a tensor is gone and the step from which it is back, under these events."""
    first = next(iter(trace.unpacked_at.values()))
    gone = first if release is None else trace.packed_at[release]
    back = first if fetch is None else trace.unpacked_at[fetch]
    return max(gone, tensor.last_forward_use + 1), min(back, need)


def _find_release(trace: Trace, saved: Saved, step: int) -> int | None:
    """Return the last pack before a step begins, or None after the forward steps."""
    first = next(iter(trace.unpacked_at.values()))
    packs = [pack for pack, at in enumerate(trace.packed_at) if pack > saved.packs[0] and at <= step]
    return packs[-1] if packs and step < first else None


def _find_fetch(trace: Trace, need: int, step: int) -> int | None:
    """Return the first pack that is unpacked at or after a step, or None for the first of all."""
    events = list(trace.unpacked_at.items())  # in the order of unpacking
    if step <= events[0][1]:
        return None
    return next(pack for pack, at in events if at >= min(step, need))


def _count_bytes(
    tensors: Sequence[SavedTensor],
    choices: Sequence[Choice],
    runs: Sequence[Run],
    events: dict[int, Events],
    needs: Sequence[int],
) -> list[int]:
    """Return the bytes in memory during each step, in the order of the host."""
    workspace = [run.workspace for run in runs]
    for tensor, choice in zip(tensors, choices, strict=True):
        if choice == "recompute" and tensor.replay:
            at = tensor.first_backward_use
            workspace[at] = max(workspace[at], tensor.replay.workspace)
    held = [run.fixed + scratch for run, scratch in zip(runs, workspace, strict=True)]
    for i, (tensor, choice) in enumerate(zip(tensors, choices, strict=True)):
        gone = tensor.last_forward_use + 1 if choice == "recompute" else tensor.last_use + 1
        back = tensor.first_backward_use
        if i in events:
            gone, back = events[i].gone_from, events[i].back_from
        steps = set(range(tensor.produced_at, gone))
        if choice != "keep":
            steps |= set(range(back, tensor.last_use + 1))
        for step in steps:
            held[step] += tensor.bytes
    return held
