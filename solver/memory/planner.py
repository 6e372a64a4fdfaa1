"""The memory planner: a budget for all memory that a training step allocates.

For each saved tensor it decides whether the tensor stays, moves to host memory, or is computed again, and for
each kernel which configuration runs. The policies of vDNN decide by rules. The policy `joint` rounds the
solutions of a linear program and improves them by a local search, and for small networks also solves an
integer program. Every answer is simulated, and its memory is checked in whole bytes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

import numpy as np

from ..workspace.configuration import TIE, Infeasible
from . import joint_program, vdnn
from .copies import CopySteps
from .evaluation import CopyRules, Evaluator, decode, encode
from .floor import check_floor, find_floor
from .search import GAP, Search
from .timeline import Timeline, simulate
from .training import Choice, SavedTensor, TrainingStep

SMALL = 120  # with as many steps at most, the integer program is solved, too

Policy: TypeAlias = Literal["none", "all", "conv", "dynamic", "joint"]
Track: TypeAlias = Callable[[Iterable[None], str, int], Iterable[None]]


def untracked(stages: Iterable[None], title: str, total: int) -> Iterable[None]:
    """Return the stages and show no progress."""
    return stages


@dataclass(frozen=True, slots=True)
class MemoryDecision:
    """The answer of the planner.

    Attributes:
        choices: the choice for each tensor.
        configurations: the index of each kernel's configuration.
        tensors: the saved tensors, whose replays run the kernels with these configurations.
        timeline: the simulated training step.
        floor: the least memory with which the policy has an answer, in bytes.
        bound_ms: the time that every decision takes at least, however it copies; 0 for the policies of vDNN.
        seconds: the time that the planner took.
        is_cut: True if the time limit stopped the search, so that a faster machine may find another answer.
        schedule: the steps that bound the copies; empty if they are as early as memory allows.
    """

    choices: tuple[Choice, ...]
    configurations: tuple[int, ...]
    tensors: tuple[SavedTensor, ...]
    timeline: Timeline
    floor: int
    bound_ms: float = 0.0
    seconds: float = 0.0
    is_cut: bool = False
    schedule: dict[int, CopySteps] = field(default_factory=dict)


def decide_memory(
    work: TrainingStep,
    memory: int,
    *,
    policy: Policy = "joint",
    recompute: bool = True,
    offload: bool = True,
    exact: bool = False,
    time_limit: float = math.inf,
    track: Track = untracked,
) -> MemoryDecision:
    """Decide for all tensors and kernels, so that the training step is fast and fits the memory.

    Args:
        work: the training step.
        memory: the most bytes in memory at any time.
        policy: "joint", or a policy of vDNN. The static ones run performance-optimal algorithms if these
            fit, else greedy ones, else memory-optimal ones.
        recompute: False to recompute nothing. The policies of vDNN never do.
        offload: False to offload nothing, for "joint" only.
        exact: also search for the optimum of the integer program.
        time_limit: seconds after which the search stops. Without them it stops by counts alone, so that the
            decision does not depend on the machine's speed.
        track: passes the stages of the search on, with a title and their number, to show progress.

    Raises:
        Infeasible: the memory is below the floor. Its `need` is the floor; for its precision see
            `find_floor`. `need` is None if host memory is too small for the policy.
        ValueError: there is no such policy.
    """
    start = time.monotonic()
    if policy == "joint":
        decision = _Joint(work, memory, recompute, offload, time_limit, track).decide(exact)
    elif policy == "dynamic":
        decision = _decide_by_trials(work, memory, "all", vdnn.try_dynamic(work, memory))
    elif policy in ("none", "all", "conv"):
        decision = _decide_by_trials(work, memory, policy, _try_algorithms(work, memory, policy))
    else:
        raise ValueError(f"there is no policy {policy!r}: give none, all, conv, dynamic or joint")
    return replace(decision, seconds=time.monotonic() - start)


def _try_algorithms(work: TrainingStep, memory: int, policy: vdnn.StaticPolicy) -> vdnn.Trial | None:
    """Return the static policy's first trial that fits, the fastest algorithms first."""
    fastest = vdnn.try_static(work, policy, "performance")
    if vdnn.fits(work, fastest, memory):
        return fastest
    greedy = vdnn.try_greedy(work, policy, memory)
    if vdnn.fits(work, greedy, memory):
        return greedy
    smallest = vdnn.try_static(work, policy, "memory")
    return smallest if vdnn.fits(work, smallest, memory) else None


def _decide_by_trials(
    work: TrainingStep, memory: int, policy: vdnn.StaticPolicy, trial: vdnn.Trial | None
) -> MemoryDecision:
    """Return the decision of a policy of vDNN. Raises Infeasible if no trial fits."""
    smallest = vdnn.try_static(work, policy, "memory")
    floor = smallest.timeline.peak
    if not work.fits_host(smallest.choices):
        chosen = zip(work.tensors, smallest.choices, strict=True)
        offloaded = sum(tensor.bytes for tensor, choice in chosen if choice == "offload")
        raise Infeasible(
            f"host memory of {work.host_memory} bytes is too small: the policy offloads {offloaded} bytes",
            limit=memory,
            need=None,
        )
    check_floor(memory, floor)
    assert trial is not None  # the smallest one fits
    return _decision_of(trial, floor)


def _decision_of(trial: vdnn.Trial, floor: int) -> MemoryDecision:
    return MemoryDecision(
        trial.choices, trial.configurations, trial.tensors, trial.timeline, floor, schedule=trial.schedule
    )


class _Joint:
    """The policy that decides for all tensors and kernels together."""

    def __init__(
        self,
        work: TrainingStep,
        memory: int,
        recompute: bool,
        offload: bool,
        time_limit: float,
        track: Track,
    ) -> None:
        self._work, self._memory = work, memory
        self._recompute, self._offload = recompute, offload
        self._track, self._is_cut = track, False
        self._end = time.monotonic() + time_limit
        self._floor, self._smallest = find_floor(work, offload=offload, recompute=recompute)
        check_floor(memory, self._floor)

    def decide(self, exact: bool) -> MemoryDecision:
        work = self._work
        keep = vdnn.choose_tensors(work, "none")
        unlimited = self._play(keep, work.fastest, {})
        if unlimited is not None:
            return replace(unlimited, bound_ms=unlimited.timeline.time_ms)
        smallest = [self._smallest]
        if self._offload and self._recompute:  # copies may make the step wait longer than replays
            smallest.append(find_floor(work, offload=False)[1])
        search = Search(
            Evaluator(work), self._memory, [encode(choices) for choices in smallest],
            offload=self._offload, recompute=self._recompute, has_time=self._has_time,
        )  # fmt: skip
        for _ in self._track(search.run(), "planning", search.stages):
            pass
        steps = len(work.steps)
        is_far = search.best.time_ms > search.bound_ms * (1 + (0.0 if exact else GAP))
        if is_far and (exact or steps <= SMALL) and self._has_time():
            self._solve(search, exact)
        search.keep_more()
        best = search.best
        decision = self._play(decode(best.codes), best.configurations.tolist(), best.rules.bound(best.codes))
        trial = vdnn.try_dynamic(work, self._memory) if self._offload else None
        if decision is None or (trial and trial.timeline.time_ms < decision.timeline.time_ms * (1 - TIE)):
            assert trial is not None  # the search simulates as `simulate` does, so its decision fits
            decision = _decision_of(trial, self._floor)
        return replace(decision, bound_ms=search.bound_ms, is_cut=self._is_cut)

    def _solve(self, search: Search, exact: bool) -> None:
        """Solve the integer program, which also knows in which order tensors should leave."""
        answer = joint_program.solve(
            replace(self._work, tensors=self._work.settle(self._work.least_workspace)),
            self._memory,
            gap=0.0 if exact else GAP,
            time_limit=max(self._end - time.monotonic(), 0.1),
            recompute=self._recompute,
            offload=self._offload,
            faster_than=search.best.time_ms,
        )
        self._is_cut |= answer.is_cut
        if answer.choices is not None:
            codes, configurations = encode(answer.choices), np.array(answer.configurations, dtype=np.int64)
            for order in (answer.leaves_at, {}):
                search.improve(codes, configurations, CopyRules(leaves_at=tuple(order.items())))

    def _has_time(self) -> bool:
        self._is_cut |= time.monotonic() > self._end
        return not self._is_cut

    def _play(
        self, choices: Sequence[Choice], configurations: Sequence[int], schedule: dict[int, CopySteps]
    ) -> MemoryDecision | None:
        """Return a decision with its simulation, or None if it does not fit device or host memory."""
        work = self._work
        if not work.fits_host(choices):
            return None
        runs, tensors = work.runs(configurations), work.settle(configurations)
        try:
            timeline = simulate(runs, tensors, choices, work.link, memory=self._memory, schedule=schedule)
        except Infeasible:
            return None
        return MemoryDecision(
            tuple(choices), tuple(configurations), tensors, timeline, self._floor, schedule=schedule
        )
