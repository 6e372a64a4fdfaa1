"""The time of any decision for one training step, as `simulate` finds it, in a fraction of a millisecond.

A search tries thousands of decisions. Most of them do not fit, or compute longer than the best one so far,
which sums over arrays show without the events. A decision is an array with the code of each tensor's choice,
and another with the index of each kernel's configuration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .copies import CopySteps
from .simulation import Agenda, run_events
from .timeline import WINDOW
from .training import Choice, TrainingStep

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


@dataclass(frozen=True, slots=True)
class CopyRules:
    """When the copies of offloaded tensors may begin.

    Args:
        is_early: True if a tensor may return as soon as there is memory, instead of WINDOW steps before.
        leaves_at: for some tensors, the `leaves_at` of `CopySteps`.
    """

    is_early: bool = False
    leaves_at: tuple[tuple[int, int], ...] = ()

    def bound(self, codes: Codes) -> dict[int, CopySteps]:
        """Return the schedule of the offloaded tensors, for `simulate`."""
        leaves_at = dict(self.leaves_at)
        bounds = {
            int(i): CopySteps(in_from=0 if self.is_early else None, leaves_at=leaves_at.get(int(i)))
            for i in np.flatnonzero(codes == OFFLOAD)
        }
        return {i: steps for i, steps in bounds.items() if steps != CopySteps()}


class Evaluator:
    """A training step as arrays.

    Attributes:
        bytes, freed_from, needs: as in `Agenda`, of each tensor.
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
        self._produced = _integers(tensor.produced_at for tensor in tensors)
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
        np.add.at(change, self._produced, self.bytes)
        np.subtract.at(change, _integers(tensor.last_use + 1 for tensor in tensors), self.bytes)
        self._kept = np.cumsum(change)[:-1] + _integers(step.fixed for step in work.steps)
        self._lists: tuple[list[int], ...] = (
            self.bytes.tolist(),
            self.freed_from.tolist(),
            np.minimum(self._produced + 1, self.freed_from).tolist(),
        )
        self.evaluations = self.simulations = 0

    def compute_ms(self, codes: Codes, configurations: Integers) -> float:
        """Return the milliseconds of all steps and replays."""
        return self._sum_ms(codes, configurations, self.replays_ms(configurations))

    def _sum_ms(self, codes: Codes, configurations: Integers, replays_ms: Numbers) -> float:
        kernels = self._kernel_ms[self._first + configurations].sum()
        return float(self._step_ms.sum() + kernels + replays_ms[codes == RECOMPUTE].sum())

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

    def held(self, codes: Codes) -> Integers:
        """Return the bytes of each step if no copy is under way, without workspaces."""
        gone = codes != KEEP
        change = np.zeros(self.steps + 1, dtype=np.int64)
        np.subtract.at(change, self.freed_from[gone], self.bytes[gone])
        np.add.at(change, self.needing_steps(codes)[gone], self.bytes[gone])
        held: Integers = self._kept + np.cumsum(change)[:-1]
        return held

    def profile(self, codes: Codes, configurations: Integers) -> Integers:
        """Return the bytes of each step if no copy is under way."""
        workspace = np.zeros(self.steps, dtype=np.int64)
        np.maximum.at(workspace, self._kernel_step, self._kernel_bytes[self._first + configurations])
        replayed = codes == RECOMPUTE
        if replayed.any():
            scratch = self._replay_bytes
            if len(self._again):
                kernels = self._again_kernel
                of_kernels = self._kernel_bytes[self._first[kernels] + configurations[kernels]]
                scratch = scratch.copy()
                np.maximum.at(scratch, self._again, self._replay_bytes[self._again] + of_kernels)
            np.maximum.at(workspace, self.needs[replayed], scratch[replayed])
        profile: Integers = self.held(codes) + workspace
        return profile

    def fit(self, codes: Codes, memory: int) -> Integers:
        """Return each kernel's fastest configuration within the memory that is free, else the smallest.

        A kernel that also runs in a replay must fit there, too.
        """
        free = memory - self.held(codes)
        most = free[self._kernel_step]
        replayed = codes[self._again] == RECOMPUTE
        again, kernels = self._again[replayed], self._again_kernel[replayed]
        np.minimum.at(most, kernels, free[self.needs[again]] - self._replay_bytes[again])
        fitting = self._kernel_bytes <= np.repeat(most, self.configurations)
        if not len(fitting):
            return np.zeros(0, dtype=np.int64)
        counts: Integers = np.add.reduceat(fitting, self._first, dtype=np.int64)
        return np.maximum(counts - 1, 0)

    def time_ms(
        self,
        codes: Codes,
        configurations: Integers,
        memory: int,
        rules: CopyRules,
        *,
        faster_than: float = math.inf,
    ) -> float:
        """Return the milliseconds of a decision.

        Return infinity if it cannot run, needs more memory on the device or the host, or is not faster.
        """
        self.evaluations += 1
        replays_ms = self.replays_ms(configurations)
        compute_ms = self._sum_ms(codes, configurations, replays_ms)
        if compute_ms >= faster_than:
            return math.inf
        if (codes[self.sources[codes[self.readers] == RECOMPUTE]] == RECOMPUTE).any():
            return math.inf
        profile = self.profile(codes, configurations)
        if self.steps and int(profile.max()) > memory:
            return math.inf
        copied = np.flatnonzero((codes == OFFLOAD) & (self.bytes > 0))
        host = self.work.host_memory
        if host is not None and int(self.bytes[copied].sum()) > host:
            return math.inf
        if not len(copied):
            return compute_ms
        self.simulations += 1
        times = self._step_ms.copy()
        np.add.at(times, self._kernel_step, self._kernel_ms[self._first + configurations])
        replayed = codes == RECOMPUTE
        np.add.at(times, self.needs[replayed], replays_ms[replayed])
        agenda = self._plan_copies(copied, self.needing_steps(codes), rules)
        agenda.time_ms, agenda.free = times.tolist(), (memory - profile).tolist()
        return run_events(agenda, self.work.link, faster_than=faster_than)

    def _plan_copies(self, copied: Integers, needs: Integers, rules: CopyRules) -> Agenda:
        sizes, freed_from, out_from = self._lists
        leaves_at = self.freed_from
        if rules.leaves_at:
            leaves_at = leaves_at.copy()
            for i, step in rules.leaves_at:
                leaves_at[i] = step
        out_order = copied[np.lexsort((copied, self.freed_from[copied], leaves_at[copied]))]
        in_order = copied[np.lexsort((copied, needs[copied]))]
        awaited = np.searchsorted(needs[in_order], np.arange(self.steps), side="right")
        in_from = [0] * len(sizes) if rules.is_early else (needs - WINDOW).tolist()
        return Agenda(
            [], [], sizes, freed_from, needs.tolist(), out_order.tolist(), out_from, in_order.tolist(),
            in_from, {}, awaited.tolist(),
        )  # fmt: skip


def _integers(values: Any) -> Integers:
    return np.array(list(values), dtype=np.int64)
