"""The memory planner is nearly as fast as the best of all choices, and never needs more than the memory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mucudnn.solver import Infeasible
from mucudnn.solver import memory as planner
from mucudnn.solver.copies import CopySteps, Link
from mucudnn.solver.floor import find_floor
from mucudnn.solver.memory import MemoryDecision, Policy, decide_memory
from mucudnn.solver.offload_ilp import Decision
from mucudnn.solver.timeline import required_bytes, simulate
from mucudnn.solver.training import Choice, KernelChoice, SavedTensor, StepCost, TrainingStep
from mucudnn.solver.vdnn import bound_copies, choose_tensors, try_dynamic, try_static
from tests.unit.training_steps import chain, chains, configuration, valid_choices


def all_decisions(work: TrainingStep) -> list[tuple[tuple[Choice, ...], tuple[int, ...]]]:
    configurations = itertools.product(*(range(len(kernel.configurations)) for kernel in work.kernels))
    return list(itertools.product(valid_choices(work), configurations))


def need_of(work: TrainingStep, choices: Sequence[Choice]) -> int:
    return max(required_bytes(work.runs(work.least_workspace), work.tensors, choices, work.link))


def best_time(work: TrainingStep, memory: int) -> float:
    times = []
    for choices, configurations in all_decisions(work):
        try:
            runs = work.runs(configurations)
            times.append(simulate(runs, work.tensors, choices, work.link, memory=memory).time_ms)
        except Infeasible:
            continue
    return min(times)


@st.composite
def networks_with_memory(draw: st.DrawFn) -> tuple[TrainingStep, int]:
    work = draw(chains(4))
    kernels = draw(st.permutations(work.kernels))[:4]
    work = replace(work, kernels=tuple(kernels), link=replace(work.link, piece=1))
    return work, find_floor(work)[0] + draw(st.integers(0, 15))


class TestJoint:
    @settings(max_examples=200)
    @given(networks_with_memory())
    def test_it_is_nearly_as_fast_as_the_best_of_all_choices(self, given: tuple[TrainingStep, int]) -> None:
        work, memory = given
        decision = decide_memory(work, memory, exact=True)
        best = best_time(work, memory)
        print("RATIO", decision.timeline.time_ms / best, decision.source)
        assert decision.timeline.time_ms >= best - 1e-9
