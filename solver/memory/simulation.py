"""A training step on a compute stream and two copy engines, whose rules are in `timeline`.

`run_events` is the loop over its events. The planner's search runs it thousands of times for the time alone,
so it works on plain lists and local names. A `Simulation` watches it to draw a timeline.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .copies import Copy, CopySteps, Link
from .training import Choice, Run, SavedTensor, first_needs

UNLIMITED = 2**62


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
    agenda: Agenda, link: Link, *, faster_than: float = math.inf, watcher: Simulation | None = None
) -> float:
    """Return the milliseconds of a training step.

    Return infinity if it is not faster, or if a step waits forever. `agenda.free` changes: it loses memory
    that tensors hold before they are needed. Lingering tensors are those that no forward step uses any more,
    but which are not yet copied out.
    """
    times, free, sizes, freed_from = agenda.time_ms, agenda.free, agenda.sizes, agenda.freed_from
    needs, out_from, in_order, in_from = agenda.needs, agenda.out_from, agenda.in_order, agenda.in_from
    awaited_out, awaited_in = agenda.awaited_out, agenda.awaited_in
    out_bandwidth, in_bandwidth, piece, by_piece = (
        link.out_bandwidth,
        link.in_bandwidth,
        link.piece,
        link.frees_pieces,
    )
    waiting = list(agenda.out_order)
    left = {i: sizes[i] for i in waiting}  # bytes to copy out
    freed = sorted(waiting, key=freed_from.__getitem__)
    freed_count, copied_in, count_in, steps = 0, 0, len(in_order), len(times)
    in_left = sizes[in_order[0]] if in_order else 0
    is_allocated = False
    scanned = blocked_until = -1
    outgoing = incoming = -1
    out_size = in_size = lingering = step = 0
    now, is_running = 0.0, False
    compute_end = out_end = in_end = math.inf
    while step < steps:
        if (
            not is_running
            and free[step] >= lingering
            and copied_in >= awaited_in[step]
            and not (awaited_out and any(left.get(i) for i in awaited_out.get(step, ())))
        ):
            is_running = True
            compute_end = now + times[step]
            if watcher:
                watcher.start_step(now)
        if outgoing < 0 and waiting and scanned < step:
            outgoing = next((i for i in waiting if out_from[i] <= step), -1)
            if outgoing < 0:
                scanned = step  # none may go before the next step
            else:
                out_size = min(piece, left[outgoing])
                out_end = now + out_size / out_bandwidth * 1e3
                if watcher:
                    watcher.copy(outgoing, True, now, out_end, out_size)
        if incoming < 0 and copied_in < count_in and blocked_until <= step:
            i = in_order[copied_in]
            if in_from[i] <= step and freed_from[i] <= step and not left[i]:
                in_size = min(piece, in_left)
                wanted = 0 if is_allocated else in_size if by_piece else in_left
                end = needs[i]
                if wanted and step < end and min(free[step:end]) < wanted:
                    blocked_until = next(s for s in range(end - 1, step - 1, -1) if free[s] < wanted) + 1
                elif not wanted or free[step] >= lingering + (wanted if step < end else 0):
                    for s in range(step, end if wanted else step):
                        free[s] -= wanted
                    is_allocated = not by_piece
                    incoming, in_end = i, now + in_size / in_bandwidth * 1e3
                    if watcher:
                        watcher.allocate(i, wanted)
                        watcher.copy(i, False, now, in_end, in_size)
        if watcher:
            watcher.hold(now, step, is_running, lingering)
        now = min(compute_end, out_end, in_end)
        if now >= faster_than:
            return math.inf
        if out_end <= now:
            left[outgoing] -= out_size
            if not left[outgoing]:
                waiting.remove(outgoing)
            if freed_from[outgoing] <= step:  # its last forward use has ended
                if by_piece:
                    lingering -= out_size
                elif not left[outgoing]:
                    lingering -= sizes[outgoing]
            outgoing, out_end = -1, math.inf
        if in_end <= now:
            in_left -= in_size
            incoming, in_end = -1, math.inf
            if not in_left:
                copied_in += 1
                is_allocated = False
                in_left = sizes[in_order[copied_in]] if copied_in < count_in else 0
        if compute_end <= now:
            compute_end, is_running = math.inf, False
            step += 1
            while freed_count < len(freed) and freed_from[freed[freed_count]] <= step:
                i = freed[freed_count]
                freed_count += 1
                if left[i]:
                    lingering += left[i] if by_piece else sizes[i]
            if watcher:
                watcher.end_step(now, step, lingering)
    return now


class Simulation:
    """A training step with a choice for each tensor, and after `run` its moments, copies and memory.

    `profile` has the bytes of each step if no copy is under way.
    """

    def __init__(
        self,
        runs: Sequence[Run],
        tensors: Sequence[SavedTensor],
        choices: Sequence[Choice],
        link: Link,
        memory: int | None,
        window: int | None,
        schedule: Mapping[int, CopySteps],
    ) -> None:
        self._tensors, self._link = tensors, link
        self._limit = UNLIMITED if memory is None else memory
        self._time = [run.time_ms for run in runs]
        self._fixed = [run.fixed for run in runs]
        workspace = [run.workspace for run in runs]
        for tensor, choice in zip(tensors, choices, strict=True):
            if choice == "recompute" and tensor.replay:
                step = tensor.first_backward_use
                self._time[step] += tensor.replay.time_ms
                workspace[step] = max(workspace[step], tensor.replay.workspace)
        self._transient = [fixed + scratch for fixed, scratch in zip(self._fixed, workspace, strict=True)]
        self.profile = np.array(self._transient, dtype=np.int64)
        self._starting = [0] * len(runs)  # bytes of the tensors that a step allocates itself
        self._needs = first_needs(tensors, choices)
        self._returning: list[list[int]] = [[] for _ in runs]  # the offloaded tensors that each step needs
        for i, (tensor, choice, need) in enumerate(zip(tensors, choices, self._needs, strict=True)):
            self._starting[tensor.produced_at] += tensor.bytes
            if choice == "keep":
                self.profile[tensor.produced_at : tensor.last_use + 1] += tensor.bytes
                continue
            self.profile[tensor.produced_at : tensor.last_forward_use + 1] += tensor.bytes
            self.profile[need : tensor.last_use + 1] += tensor.bytes
            if choice == "offload":
                self._returning[need].append(i)
            else:
                self._starting[need] += tensor.bytes
        copied = [i for i, choice in enumerate(choices) if choice == "offload" and tensors[i].bytes]
        self._agenda = self._plan_copies(copied, window, schedule)
        self._allocated = dict.fromkeys((i for needed in self._returning for i in needed), 0)
        self._held = 0  # bytes in memory while no step runs, without lingering tensors
        self.starts_ms: list[float] = []
        self.ends_ms: list[float] = []
        self.copies: list[Copy] = []
        self.memory: list[tuple[float, int]] = []
        self.step_bytes = [0] * len(runs)
        self.peak = 0

    def _plan_copies(
        self, copied: list[int], window: int | None, schedule: Mapping[int, CopySteps]
    ) -> Agenda:
        tensors, needs = self._tensors, self._needs
        freed_from = [tensor.last_forward_use + 1 for tensor in tensors]
        out_from = [tensor.produced_at + 1 for tensor in tensors]
        in_from = [0 if window is None else need - window for need in needs]
        leaves_at, in_by = list(freed_from), list(needs)
        awaited_out: dict[int, list[int]] = {}
        for i in copied:
            bounds = schedule.get(i, CopySteps())
            out_from[i] = max(bounds.out_from or 0, out_from[i])
            if bounds.in_from is not None:
                in_from[i] = min(bounds.in_from, needs[i])
            if bounds.leaves_at is not None:
                leaves_at[i] = bounds.leaves_at
            if bounds.in_by is not None:
                in_by[i] = bounds.in_by
            if bounds.out_by is not None:
                awaited_out.setdefault(max(bounds.out_by, freed_from[i]), []).append(i)
        out_from = [min(steps) for steps in zip(out_from, freed_from, strict=True)]
        out_order = sorted(copied, key=lambda i: (leaves_at[i], freed_from[i], i))
        in_order = sorted(copied, key=lambda i: (needs[i], i))
        for later, earlier in zip(in_order[::-1], in_order[-2::-1], strict=False):
            in_from[earlier] = min(in_from[earlier], in_from[later])  # none overtakes another
        awaited_in, begins = [0] * len(self._time), 0
        for number, i in enumerate(in_order, 1):
            begins = max(begins, in_from[i], freed_from[i])  # a step before that would wait forever
            awaited_in[min(max(in_by[i], begins), needs[i])] = number
        sizes = [tensor.bytes for tensor in tensors]
        return Agenda(
            self._time, [], sizes, freed_from, needs, out_order, out_from, in_order, in_from,
            awaited_out, awaited_in,
        )  # fmt: skip

    def run(self) -> bool:
        """Run all steps. Return False if a step waits forever."""
        self._agenda.free = (self._limit - self.profile).tolist()
        self.end_step(0.0, 0, 0)
        self.ends_ms.clear()
        return run_events(self._agenda, self._link, watcher=self) < math.inf

    @property
    def step(self) -> int:
        """The step that runs, or that waits to start."""
        return len(self.ends_ms)

    @property
    def compute_ms(self) -> float:
        """Milliseconds of all steps and replays."""
        return math.fsum(self._time)

    def start_step(self, now: float) -> None:
        """Note the start of the next step."""
        self.starts_ms.append(now)

    def end_step(self, now: float, step: int, lingering: int) -> None:
        """Note the end of a step, and count the bytes that are in memory until the next one starts."""
        self.ends_ms.append(now)
        if step == len(self._time):
            return
        fixed = min(self._fixed[max(step - 1, 0)], self._fixed[step])
        absent = sum(self._tensors[i].bytes - self._allocated[i] for i in self._returning[step])
        tensors = self._limit - self._agenda.free[step] - self._transient[step]
        self._held = fixed + tensors - self._starting[step] - absent

    def copy(self, tensor: int, is_out: bool, start: float, end: float, size: int) -> None:
        """Note the copy of a piece."""
        self.copies.append(Copy(tensor, "out" if is_out else "in", start, end, size))

    def allocate(self, tensor: int, size: int) -> None:
        """Note that a copy in gets memory."""
        self._allocated[tensor] += size
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
