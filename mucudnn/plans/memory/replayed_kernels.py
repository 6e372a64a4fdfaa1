"""The convolutions that run again, which must run as in the forward steps for the result to have equal bits.

The solver counts a replay with the least workspace, but a running program calls the module, which has one
plan. So a convolution that is computed again gets the fastest configuration that fits both of its runs.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from mucudnn.plans.memory.training_step import Work
from mucudnn.solver import Infeasible
from mucudnn.solver.memory.planner import MemoryDecision
from mucudnn.solver.memory.timeline import required_bytes, simulate
from mucudnn.solver.memory.training import SavedTensor, TrainingStep


def settle_replays(
    work: Work, decision: MemoryDecision, replayed: Mapping[str, Sequence[str]], memory: int
) -> tuple[Work, MemoryDecision]:
    """Return the work and the decision with one configuration for both runs of each replayed kernel.

    `replayed` names the steps that compute each tensor again.
    """
    numbers, choices = work.numbers, decision.choices
    again = {
        i: [
            k
            for k, place in enumerate(work.kernels)
            if place.step.name in replayed.get(tensor.name, ()) and not place.step.backward_of
        ]
        for i, tensor in enumerate(numbers.tensors)
        if choices[i] == "recompute"
    }
    again = {i: kernels for i, kernels in again.items() if kernels}
    if not again:
        return work, decision
    chosen = list(decision.configurations)
    for i, kernels in again.items():
        free = _find_free(numbers, decision, i, memory) - _count_between(numbers, i, kernels)
        for k in kernels:
            fitting = sum(choice.workspace <= free for choice in numbers.kernels[k].configurations)
            chosen[k] = min(chosen[k], max(fitting - 1, 0))
    settled = _with_replays(numbers, again, chosen)
    try:
        return replace(work, numbers=settled), _simulate(settled, decision, chosen, memory)
    except Infeasible:  # with the least workspaces, the replays are those that the solver counted
        for k in {k for kernels in again.values() for k in kernels}:
            chosen[k] = 0
        return work, _simulate(numbers, decision, chosen, memory)


def _simulate(
    numbers: TrainingStep, decision: MemoryDecision, chosen: Sequence[int], memory: int
) -> MemoryDecision:
    runs, schedule = numbers.runs(chosen), decision.schedule
    timeline = simulate(
        runs, numbers.tensors, decision.choices, numbers.link, memory=memory, schedule=schedule
    )
    return replace(decision, configurations=tuple(chosen), timeline=timeline)


def _find_free(numbers: TrainingStep, decision: MemoryDecision, i: int, memory: int) -> int:
    """Return the bytes that are free for workspace when a tensor is computed again."""
    runs = numbers.runs(decision.configurations)
    tensors = tuple(
        replace(tensor, replay=replace(tensor.replay, workspace=0)) if tensor.replay else tensor
        for tensor in numbers.tensors
    )
    step = numbers.tensors[i].first_backward_use
    held = required_bytes(runs, tensors, decision.choices, numbers.link)[step]
    return memory - held + runs[step].workspace


def _count_between(numbers: TrainingStep, i: int, kernels: Sequence[int]) -> int:
    """Return the bytes that a replay needs besides the workspace of its kernels."""
    replay = numbers.tensors[i].replay
    assert replay is not None
    return replay.workspace - max(numbers.kernels[k].configurations[0].workspace for k in kernels)


def _with_replays(
    numbers: TrainingStep, again: Mapping[int, Sequence[int]], chosen: Sequence[int]
) -> TrainingStep:
    """Return the training step whose replays run the chosen configurations."""
    tensors: list[SavedTensor] = list(numbers.tensors)
    for i, kernels in again.items():
        replay = tensors[i].replay
        assert replay is not None
        run = [numbers.kernels[k].configurations[chosen[k]] for k in kernels]
        least = [numbers.kernels[k].configurations[0] for k in kernels]
        time_ms = (
            replay.time_ms + sum(choice.time_ms for choice in run) - sum(choice.time_ms for choice in least)
        )
        scratch = _count_between(numbers, i, kernels) + max(choice.workspace for choice in run)
        tensors[i] = replace(tensors[i], replay=replace(replay, time_ms=max(time_ms, 0.0), workspace=scratch))
    return replace(numbers, tensors=tuple(tensors))
