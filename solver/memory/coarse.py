"""A training step with fewer, longer steps, which the integer linear program solves in less time.

Consecutive steps become one, with the sum of their times and, if every tensor stays, the maximum of their
memory. A tensor that the joined steps use is in memory during all of them, and a workspace adds to their
maximum. So an answer for the joined steps can need less memory than the program assumes, and is simulated.
"""

from __future__ import annotations

import bisect
import math
from dataclasses import replace

from .training import KernelChoice, SavedTensor, StepCost, TrainingStep


def coarsen(work: TrainingStep) -> tuple[TrainingStep, list[int]]:
    """Return the training step with joined steps, and the first step of each join.

    A step joins the steps before it unless both have kernels, or it is the first backward use of a tensor
    whose last forward use is among them.
    """
    begins = _find_begins(work)
    ends = [*begins[1:], len(work.steps)]
    held = _count_bytes(work)
    steps = [
        StepCost(math.fsum(step.time_ms for step in work.steps[begin:end]), 0)
        for begin, end in zip(begins, ends, strict=True)
    ]
    tensors = tuple(_join(tensor, begins) for tensor in work.tensors)
    joined = TrainingStep(
        tuple(steps),
        tensors,
        tuple(KernelChoice(_place(begins, kernel.step), kernel.configurations) for kernel in work.kernels),
        work.link,
        work.host_memory,
    )
    managed = _count_bytes(joined)
    fixed = [
        max(max(held[begin:end]) - size, 0) for begin, end, size in zip(begins, ends, managed, strict=True)
    ]
    costs = [replace(step, fixed=size) for step, size in zip(steps, fixed, strict=True)]
    return replace(joined, steps=tuple(costs)), begins


def _find_begins(work: TrainingStep) -> list[int]:
    with_kernel = {kernel.step for kernel in work.kernels}
    returns: dict[int, int] = {}  # the latest last forward use of the tensors that first return for a step
    for tensor in work.tensors:
        before = returns.get(tensor.first_backward_use, -1)
        returns[tensor.first_backward_use] = max(before, tensor.last_forward_use)
    begins = [0] if work.steps else []
    has_kernel = 0 in with_kernel
    for step in range(1, len(work.steps)):
        if (has_kernel and step in with_kernel) or returns.get(step, -1) >= begins[-1]:
            begins.append(step)
            has_kernel = False
        has_kernel |= step in with_kernel
    return begins


def _place(begins: list[int], step: int) -> int:
    return bisect.bisect_right(begins, step) - 1


def _join(tensor: SavedTensor, begins: list[int]) -> SavedTensor:
    return replace(
        tensor,
        produced_at=_place(begins, tensor.produced_at),
        last_forward_use=_place(begins, tensor.last_forward_use),
        first_backward_use=_place(begins, tensor.first_backward_use),
        last_use=_place(begins, tensor.last_use),
    )


def _count_bytes(work: TrainingStep) -> list[int]:
    """Return the bytes in memory during each step, without workspaces, if every tensor stays."""
    held = [step.fixed for step in work.steps]
    for tensor in work.tensors:
        for step in range(tensor.produced_at, tensor.last_use + 1):
            held[step] += tensor.bytes
    return held
