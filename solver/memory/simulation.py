"""A training step as arrays, which give the memory and the time of any decision.

A search tries thousands of decisions. Most of them do not fit, or compute longer than the best one so far,
which sums over arrays show without the events. A decision is an array with the code of each tensor's choice,
and another with the index of each kernel's configuration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .copies import CopySteps
from .events import Agenda, run_events
from .training import Choice, TrainingStep

WINDOW = 6  # steps
UNBOUNDED = CopySteps()
NO_SCHEDULE: Mapping[int, CopySteps] = MappingProxyType({})

KEEP, OFFLOAD, RECOMPUTE = 0, 1, 2
NAMES: tuple[Choice, ...] = ("keep", "offload", "recompute")

Codes: TypeAlias = NDArray[np.int8]
Integers: TypeAlias = NDArray[np.int64]
Numbers: TypeAlias = NDArray[np.float64]


def encode(choices: Sequence[Choice]) -> Codes:
    """Return the codes of choices."""
    return np.array([NAMES.index(choice) for choice in choices], dtype=np.int8)


def decode(codes: Codes) -> tuple[Choice, ...]:
    """Return the choices of codes."""
    return tuple(NAMES[code] for code in codes)


class Simulator:
    """A training step as arrays.

    Attributes:
        bytes, produced, freed_from, needs: of each tensor its bytes, the step that writes it, the step before
            which its last forward use has ended, and its first backward use.
        kept: the bytes of each step if all tensors stay, without workspaces.
        can_leave: True for tensors with bytes and with steps between their uses.
        can_return: those that can also be computed again.
        readers, sources: the pairs of a tensor that can be computed again and of a source of it.
        configurations: the number of configurations of each kernel.
        evaluations, simulations: how many decisions were evaluated, and how many of them by their events.
    """

    def __init__(self, work: TrainingStep) -> None:
        tensors = work.tensors
        self.work = work
        self.steps = len(work.steps)
        self._step_ms = np.array([step.time_ms for step in work.steps], dtype=float)
        self.bytes = _integers(tensor.bytes for tensor in tensors)
        self.produced = _integers(tensor.produced_at for tensor in tensors)
        self.freed_from = _integers(tensor.last_forward_use + 1 for tensor in tensors)
        self.needs = _integers(tensor.first_backward_use for tensor in tensors)
        self.can_leave = (self.needs > self.freed_from) & (self.bytes > 0)
        self.can_return = self.can_leave & np.array([t.replay is not None for t in tensors], dtype=bool)
        replays = [(i, tensor.replay) for i, tensor in enumerate(tensors) if tensor.replay]
        pairs = [(i, source) for i, replay in replays for source in replay.sources]
        self.readers, self.sources = _integers(i for i, _ in pairs), _integers(j for _, j in pairs)
        self._replay_ms, self._replay_bytes = np.zeros(len(tensors)), _integers(0 for _ in tensors)
        for i, replay in replays:
            self._replay_ms[i], self._replay_bytes[i] = replay.time_ms, replay.workspace
        again = [(i, k) for i, replay in replays for k in replay.kernels]
        self._again, self._again_kernel = _integers(i for i, _ in again), _integers(k for _, k in again)
        self._kernel_step = _integers(kernel.step for kernel in work.kernels)
        self.configurations = _integers(len(kernel.configurations) for kernel in work.kernels)
        self._first = np.cumsum(self.configurations) - self.configurations
        listed = [choice for kernel in work.kernels for choice in kernel.configurations]
        self._kernel_ms = np.array([choice.time_ms for choice in listed], dtype=float)
        self._kernel_bytes = _integers(choice.workspace for choice in listed)
        change = np.zeros(self.steps + 1, dtype=np.int64)
        np.add.at(change, self.produced, self.bytes)
        np.subtract.at(change, _integers(tensor.last_use + 1 for tensor in tensors), self.bytes)
        self.kept = np.cumsum(change)[:-1] + _integers(step.fixed for step in work.steps)
        self._workspace = _integers(step.workspace for step in work.steps)
        self.evaluations = self.simulations = 0

    def compute_ms(self, codes: Codes, configurations: Integers) -> float:
        """Return the milliseconds of all steps and replays."""
        kernels = self._kernel_ms[self._first + configurations].sum()
        replays = self.replays_ms(configurations)[codes == RECOMPUTE].sum()
        return float(self._step_ms.sum() + kernels + replays)

    def replays_ms(self, configurations: Integers) -> Numbers:
        """Return the milliseconds of each tensor's replay."""
        if not len(self._again):
            return self._replay_ms
        replays_ms = self._replay_ms.copy()
        kernels = self._again_kernel
        np.add.at(replays_ms, self._again, self._kernel_ms[self._first[kernels] + configurations[kernels]])
        return replays_ms

    def needing_steps(self, codes: Codes) -> Integers:
        """Return the step that needs each tensor again: its first backward use, or an earlier replay."""
        replayed = codes[self.readers] == RECOMPUTE
        if not replayed.any():
            return self.needs
        needs = self.needs.copy()
        np.minimum.at(needs, self.sources[replayed], self.needs[self.readers[replayed]])
        return needs

    def held(self, codes: Codes, gone: Integers | None = None, back: Integers | None = None) -> Integers:
        """Return the bytes of each step without workspaces.

        `gone` and `back` are the steps from which tensors are not in memory and are there again. By default
        no copy is under way.
        """
        gone = self.freed_from if gone is None else gone
        back = self.needing_steps(codes) if back is None else np.maximum(gone, back)
        leaves = codes != KEEP
        change = np.zeros(self.steps + 1, dtype=np.int64)
        np.subtract.at(change, gone[leaves], self.bytes[leaves])
        np.add.at(change, back[leaves], self.bytes[leaves])
        held: Integers = self.kept + np.cumsum(change)[:-1]
        return held

    def workspace(self, codes: Codes, configurations: Integers) -> Integers:
        """Return the bytes of workspace of each step and of the replays before it."""
        workspace = self._workspace.copy()
        np.maximum.at(workspace, self._kernel_step, self.workspaces(configurations))
        replayed = codes == RECOMPUTE
        if replayed.any():
            scratch = self._replay_bytes
            if len(self._again):
                of_kernels = self.workspaces(configurations)[self._again_kernel]
                scratch = scratch.copy()
                np.maximum.at(scratch, self._again, self._replay_bytes[self._again] + of_kernels)
            np.maximum.at(workspace, self.needs[replayed], scratch[replayed])
        return workspace

    def profile(self, codes: Codes, configurations: Integers) -> Integers:
        """Return the bytes of each step if no copy is under way."""
        return self.held(codes) + self.workspace(codes, configurations)

    def fit(self, codes: Codes, memory: int) -> Integers:
        """Return each kernel's fastest configuration within the memory that is free, else the smallest.

        A kernel that also runs in a replay must fit there, too.
        """
        free = memory - self.held(codes)
        most = free[self._kernel_step]
        replayed = codes[self._again] == RECOMPUTE
        again, kernels = self._again[replayed], self._again_kernel[replayed]
        np.minimum.at(most, kernels, free[self.needs[again]] - self._replay_bytes[again])
        return self.fastest_within(most)

    def workspaces(self, configurations: Integers) -> Integers:
        """Return the bytes of workspace of each kernel."""
        workspaces: Integers = self._kernel_bytes[self._first + configurations]
        return workspaces

    def fastest_within(self, most: Integers) -> Integers:
        """Return each kernel's fastest configuration within these bytes, else the smallest."""
        fitting = self._kernel_bytes <= np.repeat(most, self.configurations)
        if not len(fitting):
            return np.zeros(0, dtype=np.int64)
        counts: Integers = np.add.reduceat(fitting, self._first, dtype=np.int64)
        return np.maximum(counts - 1, 0)

    def fits_host(self, codes: Codes) -> bool:
        """Return whether the offloaded tensors fit host memory together."""
        host = self.work.host_memory
        return host is None or int(self.bytes[codes == OFFLOAD].sum()) <= host

    def time_ms(
        self,
        codes: Codes,
        configurations: Integers,
        memory: int,
        window: int | None = WINDOW,
        *,
        faster_than: float = math.inf,
    ) -> float:
        """Return the milliseconds of a decision, with copies in that begin at most `window` steps early.

        Return infinity if it cannot run, needs more memory on the device or the host, or is not faster.
        """
        self.evaluations += 1
        compute_ms = self.compute_ms(codes, configurations)
        if compute_ms >= faster_than:
            return math.inf
        if (codes[self.sources[codes[self.readers] == RECOMPUTE]] == RECOMPUTE).any():
            return math.inf
        free = memory - self.profile(codes, configurations)
        if self.steps and int(free.min()) < 0:
            return math.inf
        if not self.fits_host(codes):
            return math.inf
        if not ((codes == OFFLOAD) & (self.bytes > 0)).any():
            return compute_ms
        self.simulations += 1
        agenda = self.plan(codes, configurations, free, window)
        return run_events(agenda, self.work.link, faster_than=faster_than)

    def plan(
        self,
        codes: Codes,
        configurations: Integers,
        free: Integers,
        window: int | None,
        schedule: Mapping[int, CopySteps] = NO_SCHEDULE,
    ) -> Agenda:
        """Return what happens under a decision, given the bytes that are free in each step."""
        times = self._step_ms.copy()
        np.add.at(times, self._kernel_step, self._kernel_ms[self._first + configurations])
        replayed = codes == RECOMPUTE
        np.add.at(times, self.needs[replayed], self.replays_ms(configurations)[replayed])
        freed_from = self.freed_from.tolist()
        needs = self.needing_steps(codes).tolist()
        out_from = np.minimum(self.produced + 1, self.freed_from).tolist()
        in_from = [0 if window is None else need - window for need in needs]
        in_by = list(needs)
        awaited_out: dict[int, list[int]] = {}
        copied = np.flatnonzero((codes == OFFLOAD) & (self.bytes > 0)).tolist()
        for i in copied if schedule else ():
            bounds = schedule.get(i, UNBOUNDED)
            if bounds.out_from is not None:
                out_from[i] = min(max(bounds.out_from, out_from[i]), freed_from[i])
            if bounds.in_from is not None:
                in_from[i] = min(bounds.in_from, needs[i])
            if bounds.in_by is not None:
                in_by[i] = bounds.in_by
            if bounds.out_by is not None:
                awaited_out.setdefault(max(bounds.out_by, freed_from[i]), []).append(i)
        out_order = sorted(copied, key=lambda i: (freed_from[i], i))
        in_order = sorted(copied, key=lambda i: (needs[i], i))
        for later, earlier in zip(in_order[::-1], in_order[-2::-1], strict=False):
            in_from[earlier] = min(in_from[earlier], in_from[later])  # none overtakes another
        awaited_in, begins = [0] * self.steps, 0
        for number, i in enumerate(in_order, 1):
            begins = max(begins, in_from[i], freed_from[i])  # a step before that would wait forever
            awaited_in[min(max(in_by[i], begins), needs[i])] = number
        return Agenda(
            times.tolist(), free.tolist(), self.bytes.tolist(), freed_from, needs, out_order, out_from,
            in_order, in_from, awaited_out, awaited_in,
        )  # fmt: skip


def _integers(values: Any) -> Integers:
    return np.array(list(values), dtype=np.int64)
