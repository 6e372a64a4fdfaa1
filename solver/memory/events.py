"""A training step on a compute stream and two copy engines, whose rules are in `timeline`.

`run_events` is the loop over its events. The planner's search runs it thousands of times for the time alone,
so it works on plain lists and local names. A `Recorder` notes what happens, to draw a timeline.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate

from .copies import Copy, Link


@dataclass(slots=True)
class Agenda:
    """All that happens in a training step, without its moments.

    Lists `of` a tensor have an entry for each tensor, offloaded or not.

    Attributes:
        time_ms: the milliseconds of each step.
        free: the bytes that are free in each step if no copy is under way.
        sizes: the bytes of each tensor.
        freed_from: for each tensor, the step before which its last forward use has ended.
        needs: the step that needs each tensor again.
        out_order: the tensors to copy out. Of those that may go, the first goes first.
        out_from: the step from which each tensor may be copied out.
        in_order: the tensors to copy in, strictly in this order.
        in_from: the step from which each tensor may be copied in.
        awaited_out: for some steps, the tensors whose copies out must have ended.
        awaited_in: for each step, how many copies in must have ended.
    """

    time_ms: list[float]
    free: list[int]
    sizes: list[int]
    freed_from: list[int]
    needs: list[int]
    out_order: list[int]
    out_from: list[int]
    in_order: list[int]
    in_from: list[int]
    awaited_out: dict[int, list[int]]
    awaited_in: list[int]


def run_events(
    agenda: Agenda, link: Link, *, faster_than: float = math.inf, recorder: Recorder | None = None
) -> float:
    """Return the milliseconds of a training step.

    Return infinity if it is not faster, or if a step waits forever. `agenda.free` changes: it loses memory
    that tensors hold before they are needed. Lingering tensors are those that no forward step uses any more,
    but which are not yet copied out.
    """
    times, free, sizes, freed_from = agenda.time_ms, agenda.free, agenda.sizes, agenda.freed_from
    needs, out_from, in_order, in_from = agenda.needs, agenda.out_from, agenda.in_order, agenda.in_from
    awaited_out, awaited_in = agenda.awaited_out, agenda.awaited_in
    out_bandwidth, in_bandwidth, piece = link.out_bandwidth, link.in_bandwidth, link.piece
    waiting = list(agenda.out_order)
    left = {i: sizes[i] for i in waiting}  # bytes to copy out
    freed = sorted(waiting, key=freed_from.__getitem__)
    freed_count, copied_in, count_in, steps = 0, 0, len(in_order), len(times)
    scanned = blocked_until = -1
    outgoing = incoming = -1
    out_size = lingering = step = 0
    now, is_running = 0.0, False
    compute_end = out_end = in_end = math.inf
    later = list(accumulate(times[:0:-1], initial=0.0))[::-1]  # the time of all steps after each
    while step < steps:
        if (
            not is_running
            and free[step] >= lingering
            and copied_in >= awaited_in[step]
            and not (awaited_out and any(left.get(i) for i in awaited_out.get(step, ())))
        ):
            is_running = True
            compute_end = now + times[step]
            if compute_end + later[step] >= faster_than:
                return math.inf
            if recorder:
                recorder.start_step(now)
        if incoming < 0 and copied_in < count_in and blocked_until <= step:
            i = in_order[copied_in]
            if in_from[i] <= step and freed_from[i] <= step and not left[i]:
                wanted, end = sizes[i], needs[i]
                if step < end and min(free[step:end]) < wanted:
                    blocked_until = next(s for s in range(end - 1, step - 1, -1) if free[s] < wanted) + 1
                elif free[step] >= lingering + (wanted if step < end else 0):
                    if recorder:
                        recorder.allocate(i, wanted)
                    for s in range(step, end):
                        free[s] -= wanted
                    incoming, in_end = i, now
                    while wanted:
                        size = min(piece, wanted)
                        begin, in_end = in_end, in_end + size / in_bandwidth * 1e3
                        wanted -= size
                        if recorder:
                            recorder.copy(i, False, begin, in_end, size)
        if outgoing < 0 and waiting and scanned < step:
            outgoing = next((i for i in waiting if out_from[i] <= step), -1)
            if outgoing < 0:
                scanned = step  # none may go before the next step
            else:
                out_size, out_end = 0, now
                # After a step another tensor may go first, and the end of a copy in may start a step.
                until = compute_end if is_running else in_end
                while out_size < left[outgoing] and (out_end < until or not out_size):
                    size = min(piece, left[outgoing] - out_size)
                    begin, out_end = out_end, out_end + size / out_bandwidth * 1e3
                    out_size += size
                    if recorder:
                        recorder.copy(outgoing, True, begin, out_end, size)
        if recorder:
            recorder.hold(now, step, is_running, lingering)
        now = min(compute_end, out_end, in_end)
        if now >= faster_than:
            return math.inf
        if out_end <= now:
            left[outgoing] -= out_size
            if not left[outgoing]:
                waiting.remove(outgoing)
            if freed_from[outgoing] <= step and not left[outgoing]:  # its last forward use has ended
                lingering -= sizes[outgoing]
            outgoing, out_end = -1, math.inf
        if in_end <= now:
            incoming, in_end = -1, math.inf
            copied_in += 1
        if compute_end <= now:
            compute_end, is_running = math.inf, False
            step += 1
            while freed_count < len(freed) and freed_from[freed[freed_count]] <= step:
                i = freed[freed_count]
                freed_count += 1
                if left[i]:
                    lingering += sizes[i]
            if recorder:
                recorder.end_step(now, step)
    return now


class Recorder:
    """The moments, the copies and the memory of a training step, noted at its events.

    Args:
        agenda: what happens. Its `free` changes meanwhile.
        limit: the bytes of which `agenda.free` is what is left.
        allocated: for each step, the bytes that are in memory only once it has started.
        absent: for each step, the bytes of the tensors that must be copied in before it starts.
    """

    def __init__(self, agenda: Agenda, limit: int, allocated: list[int], absent: list[int]) -> None:
        self._agenda, self._limit = agenda, limit
        self._allocated, self._absent = allocated, absent
        self.starts_ms: list[float] = []
        self.ends_ms: list[float] = []
        self.copies: list[Copy] = []
        self.memory: list[tuple[float, int]] = []
        self.step_bytes = [0] * len(allocated)
        self.peak = 0
        self._await(0)

    def _await(self, step: int) -> None:
        """Count the bytes that are in memory until a step starts, without lingering tensors."""
        if step < len(self._allocated):
            used = self._limit - self._agenda.free[step]
            self._held = used - self._allocated[step] - self._absent[step]

    def start_step(self, now: float) -> None:
        """Note the start of the next step."""
        self.starts_ms.append(now)

    def end_step(self, now: float, step: int) -> None:
        """Note the end of the step before this one."""
        self.ends_ms.append(now)
        self._await(step)

    def copy(self, tensor: int, is_out: bool, start: float, end: float, size: int) -> None:
        """Note the copy of a piece."""
        self.copies.append(Copy(tensor, "out" if is_out else "in", start, end, size))

    def allocate(self, tensor: int, size: int) -> None:
        """Note that a copy in gets memory."""
        self._absent[self._agenda.needs[tensor]] -= size
        self._held += size

    def hold(self, now: float, step: int, is_running: bool, lingering: int) -> None:
        """Note the bytes in memory until the next event."""
        held = self._limit - self._agenda.free[step] if is_running else self._held
        held += lingering
        self.peak = max(self.peak, held)
        if is_running:
            self.step_bytes[step] = max(self.step_bytes[step], held)
        if self.memory and self.memory[-1][0] == now:
            self.memory.pop()
        if not self.memory or self.memory[-1][1] != held:
            self.memory.append((now, held))
