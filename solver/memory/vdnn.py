"""The memory policies of vDNN (Rhu et al., MICRO 2016, section III).

The static policies (III-C) offload no saved tensors, all of them, or the inputs of convolutions, with
memory-optimal (m) or performance-optimal (p) algorithms. The dynamic policy (III-C, "dynamic vDNN") tries
them one after another.

vDNN's copies (III-B): a tensor is copied out while its last forward step runs, and the next step waits for
the end. A backward step starts the copy in of the next tensor that is needed, and the step after it waits for
the end. The search for that tensor ends at the next step with a kernel, so that nothing returns too early.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import numpy as np

from .copies import CopySteps
from .simulation import Simulator, encode
from .timeline import MemoryDecision, play
from .training import Choice, TrainingStep

StaticPolicy: TypeAlias = Literal["none", "all", "conv"]
Algorithms: TypeAlias = Literal["memory", "performance"]


def choose_tensors(work: TrainingStep, policy: StaticPolicy) -> tuple[Choice, ...]:
    """Return the choices of a static policy. A tensor without a step between its uses stays."""
    return tuple(
        "offload"
        if tensor.is_idle and (policy == "all" or (policy == "conv" and tensor.is_kernel_input))
        else "keep"
        for tensor in work.tensors
    )


def bound_copies(work: TrainingStep, choices: Sequence[Choice]) -> dict[int, CopySteps]:
    """Return the steps at which vDNN starts the copies and waits for them."""
    kernels = {kernel.step for kernel in work.kernels}
    needed: dict[int, list[int]] = {}
    for i, (tensor, choice) in enumerate(zip(work.tensors, choices, strict=True)):
        if choice == "offload":
            needed.setdefault(tensor.first_backward_use, []).append(i)
    bounds: dict[int, CopySteps] = {}
    begin = min((tensor.first_backward_use for tensor in work.tensors), default=0)
    for step in range(begin, len(work.steps)):
        for later in range(step + 1, len(work.steps)):
            unbounded = [i for i in needed.get(later, ()) if i not in bounds]
            for i in unbounded:
                bounds[i] = _bound(work, i, step)
            if unbounded or later in kernels:
                break
    for i in (i for tensors in needed.values() for i in tensors):
        bounds.setdefault(i, _bound(work, i, work.tensors[i].first_backward_use))
    return bounds


def _bound(work: TrainingStep, i: int, step: int) -> CopySteps:
    tensor = work.tensors[i]
    use = tensor.last_forward_use
    return CopySteps(
        out_from=use, out_by=use + 1, in_from=step, in_by=min(step + 1, tensor.first_backward_use)
    )


def try_static(work: TrainingStep, policy: StaticPolicy, algorithms: Algorithms) -> MemoryDecision:
    """Return the training step of a static policy, regardless of the memory that it needs."""
    configurations = work.least_workspace if algorithms == "memory" else work.fastest
    return _try(work, choose_tensors(work, policy), configurations)


def try_greedy(work: TrainingStep, policy: StaticPolicy, memory: int) -> MemoryDecision:
    """Return the training step of a static policy with greedy algorithms; it may need more than the memory.

    Each kernel runs its fastest configuration that fits the memory left by the policy during its step, or the
    one with the least workspace if none fits.
    """
    choices = choose_tensors(work, policy)
    least = work.least_workspace
    occupied = _try(work, choices, least).timeline.step_bytes
    steps = work.settle(least).steps
    free = [memory - occupied[k.step] + steps[k.step].workspace for k in work.kernels]
    return _try(work, choices, Simulator(work).fastest_within(np.array(free, dtype=np.int64)).tolist())


def _try(work: TrainingStep, choices: Sequence[Choice], configurations: Sequence[int]) -> MemoryDecision:
    return play(work, choices, configurations, bound_copies(work, choices))


def try_dynamic(work: TrainingStep, memory: int) -> MemoryDecision | None:
    """Return the training step that the dynamic policy adopts, or None if none fits.

    It tries, in this order:

    1. all(m): if that does not fit, the network cannot be trained.
    2. none(p), conv(p), all(p): it adopts the first that fits.
    3. conv and all with greedy algorithms: it adopts the first that fits.
    4. all(m), which fits.
    """
    smallest = try_static(work, "all", "memory")
    if not fits(work, smallest, memory):
        return None
    policies: tuple[StaticPolicy, ...] = ("none", "conv", "all")
    for policy in policies:
        trial = try_static(work, policy, "performance")
        if fits(work, trial, memory):
            return trial
    for policy in policies[1:]:
        trial = try_greedy(work, policy, memory)
        if fits(work, trial, memory):
            return trial
    return smallest


def fits(work: TrainingStep, trial: MemoryDecision, memory: int) -> bool:
    """Return whether a training step fits device and host memory."""
    return trial.timeline.peak <= memory and Simulator(work).fits_host(encode(trial.choices))
