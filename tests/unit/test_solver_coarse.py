"""Joined steps take as long, and never need less memory, than the steps that they join."""

from __future__ import annotations

import math
from bisect import bisect_right
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mucudnn.solver.memory import planner
from mucudnn.solver.memory.coarse import coarsen
from mucudnn.solver.memory.floor import find_floor
from mucudnn.solver.memory.greedy import choose_cheapest
from mucudnn.solver.memory.planner import decide_memory
from mucudnn.solver.memory.timeline import required_bytes
from mucudnn.solver.memory.training import TrainingStep, check_choices
from tests.unit.training_steps import chains, valid_choices
from tests.unit.vgg16_on_titan_x import vgg16

GIB = 2**30


@settings(max_examples=30)
@given(chains(5), st.randoms())
def test_no_choice_needs_less_memory_than_before(work: TrainingStep, random: Random) -> None:
    joined, begins = coarsen(work)
    choices = random.choice(valid_choices(work))
    fine = required_bytes(work.runs(work.least_workspace), work.tensors, choices, work.link)
    coarse = required_bytes(joined.runs(joined.least_workspace), joined.tensors, choices, work.link)
    for step, size in enumerate(fine):
        assert size <= coarse[bisect_right(begins, step) - 1]


@settings(max_examples=30)
@given(chains(5))
def test_the_time_is_the_same_and_kernels_stay_apart(work: TrainingStep) -> None:
    joined, begins = coarsen(work)
    assert math.isclose(
        sum(run.time_ms for run in joined.runs(joined.fastest)),
        sum(run.time_ms for run in work.runs(work.fastest)),
    )
    assert len(joined.steps) == len(begins) <= len(work.steps)
    assert len({kernel.step for kernel in joined.kernels}) == len({kernel.step for kernel in work.kernels})


def test_a_large_network_has_half_as_many_steps() -> None:
    work = vgg16(256)
    joined, _ = coarsen(work)
    assert len(joined.steps) <= 0.6 * len(work.steps)


@settings(max_examples=30)
@given(work=chains(4), spare=st.integers(0, 15))
def test_a_large_network_fits_its_memory(work: TrainingStep, spare: int) -> None:
    memory = find_floor(work)[0] + spare
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "LARGE", 0)
        patch.setattr(planner, "JOINED", 0)
        decision = decide_memory(work, memory)
    assert decision.timeline.peak <= memory


def test_joined_steps_lose_little_on_vgg16() -> None:
    work = vgg16(256)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(planner, "LARGE", 0)
        patch.setattr(planner, "JOINED", 0)
        joined = decide_memory(work, 12 * GIB)
    fastest = sum(run.time_ms for run in work.runs(work.fastest))
    assert joined.timeline.time_ms <= 1.03 * fastest


@settings(max_examples=30)
@given(work=chains(4), spare=st.integers(0, 15), offload=st.booleans(), recompute=st.booleans())
def test_the_cheapest_choice_is_valid_and_fits(
    work: TrainingStep, spare: int, offload: bool, recompute: bool
) -> None:
    memory = find_floor(work, offload=offload, recompute=recompute)[0] + spare
    choices = choose_cheapest(work, memory, offload=offload, recompute=recompute, hidden=0.0)
    if choices is None:
        return
    check_choices(work.tensors, choices)
    needed = required_bytes(work.runs(work.least_workspace), work.tensors, choices, work.link)
    assert max(needed) <= memory
    assert offload or "offload" not in choices
    assert recompute or "recompute" not in choices
