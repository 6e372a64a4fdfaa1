"""The memory planner: a budget for all memory that a training step allocates.

For each saved tensor it decides whether the tensor stays, moves to host memory, or is computed again, and for
each kernel which configuration runs. The policies of vDNN decide by rules, the policy `joint` by an integer
linear program. Every answer is simulated, and its memory is checked in whole bytes.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, TypeAlias

from ..workspace.configuration import TIE, Infeasible
from . import joint_program, vdnn
from .coarse import coarsen
from .copies import CopySteps
from .floor import check_floor, find_floor
from .greedy import choose_cheapest
from .timeline import WINDOW, Timeline, required_bytes, simulate
from .training import Choice, TrainingStep

GAP = 1e-3  # the default for the relative gap at which the solver stops
JOINED_GAP = 1e-2  # the same for a large network, whose joined steps are not more exact
TIME_LIMIT = 60.0  # seconds, by default; on most machines the other limits end the search long before
CHANGES = 500  # the most changes of a decision that are simulated
CHANGED_STEPS = 200_000  # the most steps of all these simulations, for large networks
JOINED = 40  # with more steps, the program is first solved for joined steps and a short window
LARGE = 120  # with more steps, it is solved only for joined steps

Policy: TypeAlias = Literal["none", "all", "conv", "dynamic", "joint"]


@dataclass(frozen=True, slots=True)
class MemoryDecision:
    """The answer of the planner.

    Attributes:
        choices: the choice for each tensor.
        configurations: the index of each kernel's configuration.
        timeline: the simulated training step.
        floor: the least memory with which the policy has an answer, in bytes.
        source: "ilp", "vdnn" or "greedy", the method that found it; "none" if everything fits unchanged.
        bound_ms: the time that every answer takes at least by the rules of the integer linear program; 0 for
            the policies of vDNN.
        seconds: the time that the planner took.
        is_cut: True if the time limit stopped the search, so that a faster machine may find another answer.
        schedule: the steps that bound the copies; empty if they are as early as memory allows.
    """

    choices: tuple[Choice, ...]
    configurations: tuple[int, ...]
    timeline: Timeline
    floor: int
    source: str
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
    time_limit: float = TIME_LIMIT,
) -> MemoryDecision:
    """Decide for all tensors and kernels, so that the training step is fast and fits the memory.

    Args:
        work: the training step.
        memory: the most bytes in memory at any time.
        policy: "joint", or a policy of vDNN. The static ones run performance-optimal algorithms if these
            fit, else greedy ones, else memory-optimal ones.
        recompute: False to recompute nothing. The policies of vDNN never do.
        offload: False to offload nothing, for "joint" only.
        exact: search for the optimum of the program, instead of an answer within 1e-3 of it, or 1e-2 for a
            large network.
        time_limit: seconds after which the search stops. Usually it stops earlier by counts, which do not
            depend on the machine's speed.

    Raises:
        Infeasible: the memory is below the floor. Its `need` is the floor; for its precision see
            `find_floor`. `need` is None if host memory is too small for the policy.
        ValueError: there is no such policy.
    """
    start = time.monotonic()
    if policy == "joint":
        planner = _Joint(work, memory, recompute, offload)
        decision = planner.decide(0.0 if exact else GAP, time_limit)
        if offload and recompute and decision.timeline.exposed_ms:
            decision = _recompute_instead(work, memory, decision, start + time_limit)
    elif policy == "dynamic":
        decision = _decide_by_trials(work, memory, "all", vdnn.try_dynamic(work, memory))
    elif policy in ("none", "all", "conv"):
        decision = _decide_by_trials(work, memory, policy, _try_algorithms(work, memory, policy))
    else:
        raise ValueError(f"there is no policy {policy!r}: give none, all, conv, dynamic or joint")
    return replace(decision, seconds=time.monotonic() - start)


def _recompute_instead(
    work: TrainingStep, memory: int, decision: MemoryDecision, end: float
) -> MemoryDecision:
    """Return the faster of a decision that waits for copies and a decision that offloads nothing.

    The program expects more hidden copies than there are, and single changes do not lead from one decision to
    the other.
    """
    try:
        alone = _Joint(work, memory, True, False).decide(GAP, max(end - time.monotonic(), 0.1))
    except Infeasible:
        return decision
    best = _faster(alone, decision) or decision
    is_cut = decision.is_cut or alone.is_cut
    return replace(best, floor=decision.floor, bound_ms=decision.bound_ms, is_cut=is_cut)


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
        trial.choices, trial.configurations, trial.timeline, floor, "vdnn", schedule=trial.schedule
    )


class _Joint:
    """The search for the fastest decision: greedy ones first, then the integer linear program."""

    def __init__(self, work: TrainingStep, memory: int, recompute: bool, offload: bool) -> None:
        self._work, self._memory = work, memory
        self._recompute, self._offload = recompute, offload
        self._end, self._is_cut = math.inf, False
        self._changes = min(CHANGES, CHANGED_STEPS // max(len(work.steps), 1))
        self._floor, self._smallest = find_floor(work, offload=offload, recompute=recompute)
        check_floor(memory, self._floor)

    def decide(self, gap: float, time_limit: float) -> MemoryDecision:
        work = self._work
        keep = vdnn.choose_tensors(work, "none")
        unlimited = self._play(keep, work.fastest, "none")
        if unlimited is not None:
            return replace(unlimited, bound_ms=unlimited.timeline.time_ms)
        bound = fastest = math.fsum(run.time_ms for run in work.runs(work.fastest))
        best = self._decide_greedily()
        self._end = time.monotonic() + time_limit
        if best is None or best.timeline.time_ms > bound * (1 + gap):
            steps, known = len(work.steps), math.inf  # a small program needs no known time to end soon
            if gap > 0 and steps > JOINED:
                joined, begins = coarsen(work)
                coarse = max(gap, JOINED_GAP) if steps > LARGE else gap
                best = self._play_answer(self._solve(joined, coarse, window=1), begins, best)
                known = math.inf if best is None else best.timeline.time_ms
            if gap == 0 or steps <= LARGE:
                answer = self._solve(work, gap, faster_than=known)
                bound = max(bound, answer.bound) if math.isfinite(answer.bound) else bound
                best = self._play_answer(answer, range(steps), best)
        assert best is not None  # the choice that needs the least memory always runs
        if best.source != "vdnn" and best.timeline.time_ms > fastest * (1 + gap):
            best = self._improve(best)  # even at the bound of the program, which knows no pieces
        return replace(self._keep_more(best), bound_ms=bound, is_cut=self._is_cut)

    def _solve(
        self, work: TrainingStep, gap: float, *, window: int = WINDOW, faster_than: float = math.inf
    ) -> joint_program.Decision:
        answer = joint_program.solve(
            work,
            self._memory,
            gap=gap,
            time_limit=max(self._end - time.monotonic(), 0.1),
            window=window,
            recompute=self._recompute,
            offload=self._offload,
            faster_than=faster_than,
        )
        self._is_cut |= answer.is_cut
        return answer

    def _has_time(self) -> bool:
        self._is_cut |= time.monotonic() > self._end
        return not self._is_cut

    def _play_answer(
        self, answer: joint_program.Decision, begins: Sequence[int], best: MemoryDecision | None
    ) -> MemoryDecision | None:
        """Return the faster of the best decision and a program's answer, whose steps begin at `begins`."""
        if answer.choices is None:
            return best
        order = {i: CopySteps(leaves_at=begins[step]) for i, step in answer.leaves_at.items()}
        for schedule in ({}, order):
            best = _faster(self._play(answer.choices, answer.configurations, "ilp", schedule), best)
        return best

    def _decide_greedily(self) -> MemoryDecision | None:
        """Return the fastest of simple choices, each with the fastest configurations that fit with it."""
        work, memory = self._work, self._memory
        best: MemoryDecision | None = None
        tried = [vdnn.choose_tensors(work, "none"), self._smallest]
        if self._offload:
            tried += [vdnn.choose_tensors(work, "conv"), vdnn.choose_tensors(work, "all")]
        least = work.runs(work.least_workspace)
        for recompute in dict.fromkeys((self._recompute, False)):
            for hidden in (1.0, 0.5, 0.0):
                cheapest = choose_cheapest(
                    work, memory, offload=self._offload, recompute=recompute, hidden=hidden
                )
                if cheapest is not None:
                    tried.append(cheapest)
        for choices in tried:
            required = required_bytes(least, work.tensors, choices, work.link)
            free = [memory - held + run.workspace for held, run in zip(required, least, strict=True)]
            best = _faster(self._play(choices, vdnn.fastest_within(work, free), "greedy"), best)
        trial = vdnn.try_dynamic(work, memory) if self._offload else None
        return best if trial is None else _faster(_decision_of(trial, self._floor), best)

    def _play(
        self,
        choices: Sequence[Choice],
        configurations: Sequence[int],
        source: str,
        schedule: dict[int, CopySteps] | None = None,
    ) -> MemoryDecision | None:
        """Return a decision with its simulation, or None if it does not fit device or host memory."""
        work, memory = self._work, self._memory
        if not work.fits_host(choices):
            return None
        runs = work.runs(configurations)
        try:
            timeline = simulate(runs, work.tensors, choices, work.link, memory=memory, schedule=schedule)
        except Infeasible:
            return None
        return MemoryDecision(
            tuple(choices), tuple(configurations), timeline, self._floor, source, schedule=schedule or {}
        )

    def _improve(self, best: MemoryDecision) -> MemoryDecision:
        """Change one choice or configuration at a time while the simulation gets faster."""
        work, left = self._work, self._changes
        while left > 0:
            before = best
            for i in range(len(work.tensors)):
                for choice in self._other_choices(i, best.choices):
                    choices = (*best.choices[:i], choice, *best.choices[i + 1 :])
                    best = self._take_faster(best, choices, best.configurations)
                    left -= 1
                if left <= 0 or not self._has_time():
                    return best
            for k, kernel in enumerate(work.kernels):
                chosen = best.configurations[k]
                for near in (chosen - 1, chosen + 1):
                    if 0 <= near < len(kernel.configurations):
                        configurations = (*best.configurations[:k], near, *best.configurations[k + 1 :])
                        best = self._take_faster(best, best.choices, configurations)
                        left -= 1
                if left <= 0 or not self._has_time():
                    return best
            if best is before:
                break
        return best

    def _other_choices(self, i: int, choices: Sequence[Choice]) -> list[Choice]:
        """Return the other choices for a tensor that can run with the choices for all tensors."""
        tensors = self._work.tensors
        tensor = tensors[i]
        others: list[Choice] = ["keep"]
        if self._offload and tensor.is_idle:
            others.append("offload")
        if self._recompute and tensor.is_idle and tensor.replay:
            replayed = {j for j, choice in enumerate(choices) if choice == "recompute"}
            read = {source for j in replayed if (replay := tensors[j].replay) for source in replay.sources}
            if i not in read and replayed.isdisjoint(tensor.replay.sources):
                others.append("recompute")
        return [choice for choice in others if choice != choices[i]]

    def _take_faster(
        self, best: MemoryDecision, choices: Sequence[Choice], configurations: Sequence[int]
    ) -> MemoryDecision:
        """Return the faster of a decision and its change."""
        if self._compute_ms(choices, configurations) > best.timeline.time_ms:
            return best  # slower even without waits for copies, so most changes need no simulation
        schedule = {i: best.schedule[i] for i in best.schedule if choices[i] == "offload"}
        decision = self._play(choices, configurations, best.source, schedule)
        return _faster(decision, best) or best

    def _compute_ms(self, choices: Sequence[Choice], configurations: Sequence[int]) -> float:
        """Return the milliseconds of all steps and replays, without waiting."""
        chosen = zip(self._work.tensors, choices, strict=True)
        replays = (t.replay.time_ms for t, choice in chosen if choice == "recompute" and t.replay)
        return math.fsum((*(run.time_ms for run in self._work.runs(configurations)), *replays))

    def _keep_more(self, best: MemoryDecision) -> MemoryDecision:
        """Keep each tensor that need not leave, the largest first, because the solver ignores free copies."""
        if best.source == "vdnn":
            return best
        tensors = self._work.tensors
        gone = [i for i, choice in enumerate(best.choices) if choice != "keep"]
        for i in sorted(gone, key=lambda i: -tensors[i].bytes)[: self._changes]:
            if time.monotonic() < self._end + 1:  # an extra second, because this helps much in little time
                choices = (*best.choices[:i], "keep", *best.choices[i + 1 :])
                decision = self._play(choices, best.configurations, best.source, best.schedule)
                if decision is not None and decision.timeline.time_ms <= best.timeline.time_ms:
                    best = decision
        return best


def _faster(new: MemoryDecision | None, old: MemoryDecision | None) -> MemoryDecision | None:
    if new is None or old is None:
        return new or old
    return new if new.timeline.time_ms < old.timeline.time_ms * (1 - TIE) else old
