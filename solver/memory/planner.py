"""The memory planner: a budget for all memory that a training step allocates.

For each saved tensor it decides whether the tensor stays, moves to host memory, or is computed again, and for
each kernel which configuration runs. The policies of vDNN decide by rules. The policy `joint` rounds the
solutions of a linear program and improves them by a local search, and if asked for the optimum, also solves
the program in whole tensors. Every answer is simulated, and its memory is checked in whole bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np

from ..workspace.configuration import TIE, Infeasible
from . import vdnn
from .floor import check_floor, find_floor
from .search import Search
from .simulation import Simulator, decode, encode
from .timeline import MemoryDecision, play
from .training import TrainingStep

Policy: TypeAlias = Literal["none", "all", "conv", "dynamic", "joint"]
Track: TypeAlias = Callable[[Iterable[None], str, int], Iterable[None]]


def untracked(stages: Iterable[None], title: str, total: int) -> Iterable[None]:
    """Return the stages and show no progress."""
    return stages


def decide_memory(
    work: TrainingStep,
    memory: int,
    *,
    policy: Policy = "joint",
    recompute: bool = True,
    offload: bool = True,
    exact: bool = False,
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
        exact: also search for the optimum of the integer program, however long that takes. Without it the
            search stops by counts, so that the decision does not depend on the machine's speed.
        track: passes the stages of the search on, with a title and their number, to show progress.

    Raises:
        Infeasible: the memory is below the floor. Its `need` is the floor; for its precision see
            `find_floor`. `need` is None if host memory is too small for the policy.
        ValueError: there is no such policy.
    """
    if policy == "joint":
        return _decide_jointly(work, memory, recompute, offload, exact, track)
    if policy == "dynamic":
        return _decide_by_trials(work, memory, "all", vdnn.try_dynamic(work, memory))
    if policy in ("none", "all", "conv"):
        return _decide_by_trials(work, memory, policy, _try_algorithms(work, memory, policy))
    raise ValueError(f"there is no policy {policy!r}: give none, all, conv, dynamic or joint")


def _try_algorithms(work: TrainingStep, memory: int, policy: vdnn.StaticPolicy) -> MemoryDecision | None:
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
    work: TrainingStep, memory: int, policy: vdnn.StaticPolicy, trial: MemoryDecision | None
) -> MemoryDecision:
    """Return the decision of a policy of vDNN. Raises Infeasible if no trial fits."""
    smallest = vdnn.try_static(work, policy, "memory")
    floor = smallest.timeline.peak
    if not Simulator(work).fits_host(encode(smallest.choices)):
        chosen = zip(work.tensors, smallest.choices, strict=True)
        offloaded = sum(tensor.bytes for tensor, choice in chosen if choice == "offload")
        raise Infeasible(
            f"host memory of {work.host_memory} bytes is too small: the policy offloads {offloaded} bytes",
            limit=memory,
            need=None,
        )
    check_floor(memory, floor)
    assert trial is not None  # the smallest one fits
    return replace(trial, floor=floor)


def _decide_jointly(
    work: TrainingStep,
    memory: int,
    recompute: bool,
    offload: bool,
    exact: bool,
    track: Track,
) -> MemoryDecision:
    """Return a decision for all tensors and kernels together."""
    floor, smallest = find_floor(work, offload=offload, recompute=recompute)
    check_floor(memory, floor)
    simulator = Simulator(work)
    keep = encode(vdnn.choose_tensors(work, "none"))
    if simulator.profile(keep, np.array(work.fastest, dtype=np.int64)).max(initial=0) <= memory:
        unlimited = play(work, decode(keep), work.fastest, memory=memory)
        return replace(unlimited, floor=floor, bound_ms=unlimited.timeline.time_ms)
    starts = [smallest]
    if offload and recompute:  # copies may make the step wait longer than replays
        starts.append(find_floor(work, offload=False)[1])
    search = Search(simulator, memory, starts, offload=offload, recompute=recompute)
    for _ in track(search.run(), "planning", search.stages):
        pass
    if exact and search.best.time_ms > search.bound_ms:
        search.solve()
    search.keep_more()
    best = search.best
    decision = play(work, decode(best.codes), best.configurations.tolist(), best.schedule, memory)
    dynamic = vdnn.try_dynamic(work, memory) if offload else None
    if dynamic and dynamic.timeline.time_ms < decision.timeline.time_ms * (1 - TIE):
        decision = dynamic
    return replace(decision, floor=floor, bound_ms=search.bound_ms)
