"""Offload, recomputation and configurations chosen together by an integer linear program (PuLP with HiGHS).

The binaries are o (offload) and r (recompute) for each tensor, and x for each configuration of each kernel.
z says that a tensor is still on the device in a step after its last forward use, and y that it is back in a
step before its first backward use; both reach WINDOW steps. d and h are the milliseconds of each tensor's
copies out and in during a step. A step lasts as long as its work and the copies of either engine.

A pause before a step lasts as long as the copies in it. A tensor may leave in the pause after its last
forward use, and return in the pause before the step that needs it. The program minimises steps and pauses.

Here memory is always freed and allocated by the tensor, never by the piece.
"""

from __future__ import annotations

import bisect
import itertools
import math
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..highs import make_solver
from .program import Program, Terms, read_choices
from .timeline import WINDOW, required_bytes
from .training import Choice, Run, TrainingStep, offload_selected

NODES = 100  # HiGHS visits at most this many nodes of its search tree

# HiGHS accepts a constraint violated by 1e-6. In these units, that is 1e-12 of the memory.
MEMORY_UNITS = 1e6


@dataclass(frozen=True, slots=True)
class JointDecision:
    """The answer of a program.

    Attributes:
        choices: the choice for each tensor, or None if there is none or the solver found none in time.
        configurations: the index of each kernel's configuration.
        bound: the milliseconds that every choice takes at least by the program's rules.
        leaves_at: for each offloaded tensor, the first step after its last forward use without it.
        is_cut: True if the time limit stopped the solver, so that a faster machine may find another answer.
    """

    choices: tuple[Choice, ...] | None
    configurations: tuple[int, ...]
    bound: float
    leaves_at: dict[int, int] = field(default_factory=dict)
    is_cut: bool = False


def solve(
    work: TrainingStep,
    memory: int,
    *,
    gap: float,
    time_limit: float,
    recompute: bool = True,
    offload: bool = True,
    faster_than: float = math.inf,
) -> JointDecision:
    """Choose for each tensor whether it stays, and for each kernel its configuration.

    The caller must check the answer, which may exceed the memory because HiGHS computes in floating point.

    Args:
        work: the training step.
        memory: the most bytes in memory.
        gap: the relative gap at which the solver stops. Above 0, it also stops after NODES nodes.
        time_limit: seconds after which the solver stops.
        recompute: False to recompute nothing.
        offload: False to offload nothing.
        faster_than: milliseconds of an answer that the caller has. The solver ends earlier because it need
            not find a slower one.
    """
    program = _Program(work, memory, recompute, offload)
    return program.solve(gap, time_limit, faster_than)


@dataclass(frozen=True, slots=True)
class _Scratch:
    """The choice of a step's workspace: a binary for each size, and each kernel's configuration within it."""

    chosen: list[Any]
    within: list[dict[int, int]]


class _Program:
    """The variables and constraints."""

    def __init__(self, work: TrainingStep, memory: int, recompute: bool, offload: bool) -> None:
        self._program = Program("memory")
        self._add = self._program.add
        self._work = work
        # HiGHS's tolerances are absolute, so times count in thousandths of the slowest answer.
        slowest = work.runs(work.least_workspace)
        copies = sum(work.link.out_ms(t.bytes) + work.link.in_ms(t.bytes) for t in work.tensors)
        self._unit = max(sum(run.time_ms for run in slowest) + copies, 1e-9) / 1e3
        self._bytes = MEMORY_UNITS / max(memory, 1)
        count = range(len(work.steps))
        self._time = [self._program.number() for s in count]
        self._pause = [self._program.number() for s in count]
        self._workspace = [self._program.number() for s in count]
        self._work_terms: list[Terms] = [[] for _ in count]
        self._resident: list[Terms] = [[] for _ in count]
        self._constant = [float(step.fixed) for step in work.steps]
        self._copies: dict[tuple[str, int, bool], Terms] = defaultdict(list)  # (direction, step, in pause)

        self._offloaded = [self._program.binary() for i in range(len(work.tensors))]
        self._recomputed = [self._program.binary() for i in range(len(work.tensors))]
        self._back: list[dict[int, Any]] = []
        self._stays: list[list[Any]] = []
        self._fetched: list[dict[int, Terms]] = []  # the copies in that end before a replay's step
        self._replays = [self._find_replays(i) for i in range(len(work.tensors))]
        for i, tensor in enumerate(work.tensors):
            if not (offload and tensor.is_idle):
                self._add([(self._offloaded[i], 1)], "<=", 0)
            if not (recompute and tensor.is_idle and tensor.replay):
                self._add([(self._recomputed[i], 1)], "<=", 0)
            self._add([(self._offloaded[i], 1), (self._recomputed[i], 1)], "<=", 1)
            self._add_tensor(i)
        for i in range(len(work.tensors)):
            self._add_replay(i)
        away = offload_selected(tensor.is_idle for tensor in work.tensors)
        self._required = required_bytes(
            [Run(step.time_ms, step.fixed) for step in work.steps], work.tensors, away, work.link
        )
        self._scratch = [self._add_workspace(s, memory) for s in count]
        self._add_steps(memory)
        if work.host_memory is not None:
            host = [(o, t.bytes * self._bytes) for o, t in zip(self._offloaded, work.tensors, strict=True)]
            self._add(host, "<=", work.host_memory * self._bytes)

    def solve(self, gap: float, time_limit: float, faster_than: float) -> JointDecision:
        self._program.minimise(
            ((variable, 1.0) for variable in (*self._time, *self._pause)),
            make_solver(
                None if gap == 0 else NODES,
                mip_rel_gap=gap,
                mip_abs_gap=0,
                time_limit=time_limit,
                objective_bound=faster_than / self._unit,
            ),
        )
        model = self._program.problem.solverModel
        status = model.getModelStatus()
        is_cut = status == type(status).kTimeLimit
        # HiGHS does not know a bound above `faster_than`, because it skips slower answers.
        bound = min(float(model.getInfo().mip_dual_bound) * self._unit, faster_than)
        if not self._program.is_solved:
            return JointDecision(None, (), bound, is_cut=is_cut)
        choices = read_choices(self._offloaded, self._recomputed)
        configurations: dict[int, int] = {}
        for scratch in self._scratch:
            if scratch.chosen:
                configurations |= scratch.within[int(np.argmax([x.value() for x in scratch.chosen]))]
        leaves_at = {
            i: self._work.tensors[i].last_forward_use + 1 + sum(z.value() > 0.5 for z in self._stays[i])
            for i, choice in enumerate(choices)
            if choice == "offload"
        }
        chosen = tuple(configurations[k] for k in sorted(configurations))
        return JointDecision(choices, chosen, bound, leaves_at, is_cut)

    def _add_tensor(self, i: int) -> None:
        """Add the residency of a tensor in each step, and its copies."""
        tensor, o, r = self._work.tensors[i], self._offloaded[i], self._recomputed[i]
        gone, need = tensor.last_forward_use + 1, tensor.first_backward_use
        for step in (*range(tensor.produced_at, gone), *range(need, tensor.last_use + 1)):
            self._constant[step] += tensor.bytes
        late = range(gone, min(gone + WINDOW, need))
        early = range(max(need - WINDOW, gone), need)
        stays = {s: self._program.binary() for s in late}
        back = {s: self._program.binary() for s in early}
        self._back.append(back)
        self._stays.append(list(stays.values()))
        for s in range(gone, need):
            # A kept tensor is resident: 1 - o - r.
            self._constant[s] += tensor.bytes
            self._resident[s] += [(o, -tensor.bytes), (r, -tensor.bytes)]
            self._resident[s] += [(steps[s], tensor.bytes) for steps in (stays, back) if s in steps]
        for s in late:
            self._add([(stays[s], 1), (stays.get(s - 1, o), -1)], "<=", 0)
        for s in early:
            self._add([(back[s], 1), (back.get(s + 1, o), -1)], "<=", 0)
            if s in stays:
                self._add([(back[s], 1), (stays[s], 1), (o, -1)], "<=", 0)

        out = self._work.link.out_ms(tensor.bytes) / self._unit
        copied: Terms = []
        for s in range(tensor.produced_at + 1, late.stop):
            if s == gone:
                copied.append((self._copy(i, "out", s, True), 1))
            if s in stays:  # all is copied before this step, or the tensor is still there
                self._add([*copied, (stays[s], out), (o, -out)], ">=", 0)
            copied.append((self._copy(i, "out", s, False), 1))
        self._add([*copied, (o, -out)], "==", 0)

        come = self._work.link.in_ms(tensor.bytes) / self._unit
        fetched: Terms = []
        self._fetched.append({})
        for s in early:
            for in_pause in (True, False) if s in self._replays[i] else (False,):
                h = self._copy(i, "in", s, in_pause)
                self._add([(h, 1), (back[s], -come)], "<=", 0)
                fetched.append((h, 1 / come if come else 0))
                if in_pause:
                    self._fetched[i][s] = list(fetched)
        fetched.append((self._copy(i, "in", need, True), 1 / come if come else 0))
        self._add([*fetched, (o, -1 if come else 0)], "==", 0)

    def _find_replays(self, i: int) -> set[int]:
        """Return the steps before a tensor's first backward use in which a replay may read it."""
        tensors = self._work.tensors
        replays = {t.first_backward_use for t in tensors if t.replay and i in t.replay.sources}
        return {step for step in replays if step < tensors[i].first_backward_use}

    def _add_replay(self, i: int) -> None:
        """Add the time and workspace of a replay, and that its sources are present."""
        tensor, r = self._work.tensors[i], self._recomputed[i]
        if tensor.replay is None:
            return
        step = tensor.first_backward_use
        self._work_terms[step].append((r, tensor.replay.time_ms / self._unit))
        self._add([(self._workspace[step], 1), (r, -tensor.replay.workspace * self._bytes)], ">=", 0)
        for source in tensor.replay.sources:
            self._add([(r, 1), (self._recomputed[source], 1)], "<=", 1)
            if step < self._work.tensors[source].first_backward_use:
                both = [(r, 1), (self._offloaded[source], 1)]
                back = [(self._back[source][step], -1)] if step in self._back[source] else []
                self._add([*both, *back], "<=", 1)
                copied = [(variable, -part) for variable, part in self._fetched[source].get(step, ())]
                self._add([*both, *copied], "<=", 1)

    def _add_workspace(self, step: int, memory: int) -> _Scratch:
        """Add the choice of a step's workspace, within which each of its kernels runs as fast as possible."""
        kernels = [(k, kernel) for k, kernel in enumerate(self._work.kernels) if kernel.step == step]
        free = memory - self._required[step]
        least = max((kernel.configurations[0].workspace for _, kernel in kernels), default=0)
        workspaces = {
            k: [configuration.workspace for configuration in kernel.configurations] for k, kernel in kernels
        }
        all_sizes = set(itertools.chain.from_iterable(workspaces.values()))
        sizes = sorted(size for size in all_sizes if size == least or least < size <= free)
        options = _Scratch([], [])
        for size in sizes:
            within = {k: bisect.bisect_right(workspaces[k], size) - 1 for k, _ in kernels}
            x = self._program.binary()
            options.chosen.append(x)
            options.within.append(within)
            milliseconds = sum(kernel.configurations[within[k]].time_ms for k, kernel in kernels)
            self._work_terms[step].append((x, milliseconds / self._unit))
        if kernels:
            self._add([(x, 1) for x in options.chosen], "==", 1)
            needed = [(x, -size * self._bytes) for x, size in zip(options.chosen, sizes, strict=True)]
            self._add([(self._workspace[step], 1), *needed], ">=", 0)
        return options

    def _add_steps(self, memory: int) -> None:
        """Add the memory and the time of each step and pause."""
        for s, step in enumerate(self._work.steps):
            resident = [(variable, size * self._bytes) for variable, size in self._resident[s]]
            free = (memory - self._constant[s]) * self._bytes
            self._add([*resident, (self._workspace[s], 1)], "<=", free)
            work = [(variable, -time) for variable, time in self._work_terms[s]]
            self._add([(self._time[s], 1), *work], ">=", step.time_ms / self._unit)
        for (_, s, in_pause), copies in self._copies.items():
            longest = self._pause[s] if in_pause else self._time[s]
            self._add([(longest, 1), *((variable, -1) for variable, _ in copies)], ">=", 0)

    def _copy(self, i: int, direction: str, step: int, in_pause: bool) -> Any:
        """Return the milliseconds of a tensor's copy in a step, or in the pause before it."""
        variable = self._program.number()
        self._copies[direction, step, in_pause].append((variable, 1))
        return variable
