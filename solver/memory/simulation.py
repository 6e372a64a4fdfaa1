"""The record of a simulated training step: its agenda from the choices, and what happened when."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from .copies import Copy, CopySteps, Link
from .events import UNLIMITED, Agenda, run_events
from .training import Choice, Run, SavedTensor, first_needs


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
