"""The state and the events of a simulated training step, whose rules are in `timeline`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from .copies import Copy, CopySteps, Link
from .training import Choice, Run, SavedTensor, first_needs

UNLIMITED = 2**62


def spans(tensors: Sequence[SavedTensor], choices: Sequence[Choice]) -> list[tuple[int, int, int]]:
    """Return (tensor, begin, end) for each range of steps in which a tensor must be in memory."""
    held = []
    for i, (tensor, choice, need) in enumerate(
        zip(tensors, choices, first_needs(tensors, choices), strict=True)
    ):
        if choice == "keep":
            held.append((i, tensor.produced_at, tensor.last_use + 1))
        else:
            held.append((i, tensor.produced_at, tensor.last_forward_use + 1))
            held.append((i, need, tensor.last_use + 1))
    return held


@dataclass(slots=True)
class _Transfer:
    """An offloaded tensor: the bytes left to copy, the bytes allocated for the copy in, and the bounds."""

    tensor: int
    out_left: int
    in_left: int
    allocated: int
    freed_from: int  # the step before which its last forward use has ended
    need: int
    out_from: int
    in_from: int
    leaves_at: int


class Simulation:
    """The state of the compute stream, the two engines and the memory.

    `step` is the step that runs or that waits to start. `profile` has the bytes of each step without
    lingering tensors, which no forward step uses any more but which are not yet copied out.
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
        offloaded = {i for i, choice in enumerate(choices) if choice == "offload"}
        for i, begin, end in spans(tensors, choices):
            self.profile[begin:end] += tensors[i].bytes
            if begin == tensors[i].produced_at or i not in offloaded:
                self._starting[begin] += tensors[i].bytes

        needs = first_needs(tensors, choices)
        self._transfers: dict[int, _Transfer] = {}
        self._awaited_out: list[list[int]] = [[] for _ in runs]
        self._awaited_in: list[list[int]] = [[] for _ in runs]
        in_by: dict[int, int] = {}
        for i in sorted(offloaded):
            tensor, need, bounds = tensors[i], needs[i], schedule.get(i, CopySteps())
            earliest = 0 if window is None else need - window
            in_from = earliest if bounds.in_from is None else min(bounds.in_from, need)
            out_from = max(bounds.out_from or 0, tensor.produced_at + 1)
            freed_from = tensor.last_forward_use + 1
            self._transfers[i] = _Transfer(
                i,
                tensor.bytes,
                tensor.bytes,
                0,
                freed_from,
                need,
                min(out_from, freed_from),
                in_from,
                freed_from if bounds.leaves_at is None else bounds.leaves_at,
            )
            if bounds.out_by is not None:
                self._awaited_out[max(bounds.out_by, freed_from)].append(i)
            in_by[i] = need if bounds.in_by is None else bounds.in_by
        self._freed_at: list[list[_Transfer]] = [[] for _ in range(len(runs) + 1)]
        self._needed_at: list[list[_Transfer]] = [[] for _ in runs]
        for transfer in self._transfers.values():
            self._freed_at[transfer.freed_from].append(transfer)
            self._needed_at[transfer.need].append(transfer)
        copied = [transfer for transfer in self._transfers.values() if transfer.out_left]
        self._out_order = sorted(
            copied, key=lambda transfer: (transfer.leaves_at, transfer.freed_from, transfer.tensor)
        )
        self._in_order = sorted(copied, key=lambda transfer: (transfer.need, transfer.tensor))
        for later, earlier in zip(self._in_order[::-1], self._in_order[-2::-1], strict=False):
            earlier.in_from = min(earlier.in_from, later.in_from)  # none overtakes another
        begins = 0
        for transfer in self._in_order:
            begins = max(begins, transfer.in_from, transfer.freed_from)  # an earlier step would wait forever
            self._awaited_in[min(max(in_by[transfer.tensor], begins), transfer.need)].append(transfer.tensor)

        self._now = 0.0
        self.step = 0
        self._is_running = False
        self._lingering = 0
        self._held = 0  # bytes in memory while no step runs, without lingering tensors
        self._compute_end = self._out_end = self._in_end = math.inf
        self._outgoing: tuple[_Transfer, int] | None = None
        self._incoming: tuple[_Transfer, int] | None = None
        self.starts_ms: list[float] = []
        self.ends_ms: list[float] = []
        self.copies: list[Copy] = []
        self.memory: list[tuple[float, int]] = []
        self.step_bytes = [0] * len(runs)
        self.peak = 0

    def run(self) -> bool:
        """Run all steps. Return False if a step waits forever."""
        self._wait()
        while self.step < len(self._time):
            self._start_step()
            self._start_out()
            self._start_in()
            self._record()
            self._now = min(self._compute_end, self._out_end, self._in_end)
            if self._now == math.inf:
                return False
            if self._out_end <= self._now:
                self._end_out()
            if self._in_end <= self._now:
                self._end_in()
            if self._compute_end <= self._now:
                self._end_step()
        return True

    @property
    def compute_ms(self) -> float:
        """Milliseconds of all steps and replays."""
        return math.fsum(self._time)

    def _start_step(self) -> None:
        if self._is_running or self.profile[self.step] + self._lingering > self._limit:
            return
        if any(self._transfers[i].out_left for i in self._awaited_out[self.step]):
            return
        if any(self._transfers[i].in_left for i in self._awaited_in[self.step]):
            return
        self._is_running = True
        self.starts_ms.append(self._now)
        self._compute_end = self._now + self._time[self.step]

    def _end_step(self) -> None:
        self.ends_ms.append(self._now)
        self._compute_end = math.inf
        self._is_running = False
        self.step += 1
        for transfer in self._freed_at[self.step]:
            if transfer.out_left:
                size = self._tensors[transfer.tensor].bytes
                self._lingering += transfer.out_left if self._link.frees_pieces else size
        self._wait()

    def _wait(self) -> None:
        """Set the bytes that are in memory between two steps."""
        if self.step == len(self._time):
            return
        fixed = min(self._fixed[max(self.step - 1, 0)], self._fixed[self.step])
        absent = sum(
            self._tensors[transfer.tensor].bytes - transfer.allocated
            for transfer in self._needed_at[self.step]
        )
        tensors = int(self.profile[self.step]) - self._transient[self.step]
        self._held = fixed + tensors - self._starting[self.step] - absent

    def _start_out(self) -> None:
        if self._outgoing is not None:
            return
        transfer = next((transfer for transfer in self._out_order if transfer.out_from <= self.step), None)
        if transfer is not None:
            size = min(self._link.piece, transfer.out_left)
            self._outgoing = transfer, size
            self._out_end = self._now + self._link.out_ms(size)
            self.copies.append(Copy(transfer.tensor, "out", self._now, self._out_end, size))

    def _end_out(self) -> None:
        assert self._outgoing is not None
        transfer, size = self._outgoing
        self._outgoing, self._out_end = None, math.inf
        transfer.out_left -= size
        if not transfer.out_left:
            self._out_order.remove(transfer)
        if transfer.freed_from <= self.step:  # its last forward use has ended
            if self._link.frees_pieces:
                self._lingering -= size
            elif not transfer.out_left:
                self._lingering -= self._tensors[transfer.tensor].bytes

    def _start_in(self) -> None:
        if self._incoming is not None or not self._in_order:
            return
        transfer = self._in_order[0]
        if transfer.in_from > self.step or transfer.freed_from > self.step or transfer.out_left:
            return
        size = min(self._link.piece, transfer.in_left)
        needed = size if self._link.frees_pieces else transfer.in_left
        if (self._link.frees_pieces or not transfer.allocated) and not self._allocate(transfer, needed):
            return
        self._incoming = transfer, size
        self._in_end = self._now + self._link.in_ms(size)
        self.copies.append(Copy(transfer.tensor, "in", self._now, self._in_end, size))

    def _allocate(self, transfer: _Transfer, size: int) -> bool:
        """Allocate memory for a copy in until the tensor is needed. Return False if too little is free."""
        before = self.profile[self.step : transfer.need]
        now = int(self.profile[self.step]) + self._lingering + (size if len(before) else 0)
        if now > self._limit or (len(before) and int(before.max()) + size > self._limit):
            return False
        before += size
        transfer.allocated += size
        self._held += size
        return True

    def _end_in(self) -> None:
        assert self._incoming is not None
        transfer, size = self._incoming
        self._incoming, self._in_end = None, math.inf
        transfer.in_left -= size
        if not transfer.in_left:
            self._in_order.pop(0)

    def _record(self) -> None:
        held = int(self.profile[self.step]) if self._is_running else self._held
        held += self._lingering
        self.peak = max(self.peak, held)
        if self._is_running:
            self.step_bytes[self.step] = max(self.step_bytes[self.step], held)
        if self.memory and self.memory[-1][0] == self._now:
            self.memory.pop()
        if not self.memory or self.memory[-1][1] != held:
            self.memory.append((self._now, held))
