"""The memory planner is nearly as fast as the best of all choices, and never needs more than the memory."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mucudnn.solver import Infeasible
from mucudnn.solver.memory import floor
from mucudnn.solver.memory.copies import Link
from mucudnn.solver.memory.floor import find_floor
from mucudnn.solver.memory.fluid_program import FluidProgram
from mucudnn.solver.memory.planner import decide_memory
from mucudnn.solver.memory.simulation import Simulator, decode, encode
from mucudnn.solver.memory.timeline import simulate
from mucudnn.solver.memory.training import Choice, KernelChoice, StepCost, TrainingStep
from tests.unit.training_steps import (
    all_decisions,
    chain,
    chains,
    configuration,
    networks,
    required_bytes,
    valid_choices,
)
from tests.unit.vgg16_on_titan_x import vgg16


def need_of(work: TrainingStep, choices: Sequence[Choice]) -> int:
    return max(required_bytes(work, choices, work.least_workspace))


def find_best_time(work: TrainingStep, memory: int) -> float:
    """Return the least simulated time of all choices that fit the memory."""
    times = []
    for choices, configurations in all_decisions(work):
        with suppress(Infeasible):
            times.append(simulate(work, choices, configurations, memory=memory).time_ms)
    return min(times)


class TestJoint:
    @settings(derandomize=True)
    @given(networks())
    def test_it_is_within_5_percent_of_the_best_of_all_choices_and_no_slower_than_vdnn(
        self, drawn: tuple[TrainingStep, int]
    ) -> None:
        work, memory = drawn
        exact, usual = decide_memory(work, memory, exact=True), decide_memory(work, memory)
        best = find_best_time(work, memory)
        assert exact.timeline.time_ms <= 1.05 * best
        assert exact.timeline.time_ms <= usual.timeline.time_ms * (1 + 1e-9)
        assert usual.bound_ms <= exact.bound_ms * (1 + 1e-9) <= best * (1 + 1e-6)
        with suppress(Infeasible):
            dynamic = decide_memory(work, memory, policy="dynamic").timeline.time_ms
            assert usual.timeline.time_ms <= dynamic * (1 + 1e-9)

    @given(networks(), st.booleans(), st.booleans(), st.one_of(st.none(), st.integers(0, 20)))
    def test_it_fits_device_and_host_and_more_memory_makes_it_no_slower(
        self, drawn: tuple[TrainingStep, int], offload: bool, recompute: bool, host: int | None
    ) -> None:
        work, spare = replace(drawn[0], host_memory=host), drawn[1]
        least, _ = find_floor(work, offload=offload, recompute=recompute)
        memory = least + spare // 4
        decision = decide_memory(work, memory, offload=offload, recompute=recompute)
        assert decision.floor == least
        assert decision.timeline.peak <= memory
        larger = decide_memory(work, memory + spare, offload=offload, recompute=recompute)
        assert larger.timeline.time_ms <= decision.timeline.time_ms * (1 + 1e-9)
        assert Simulator(work).fits_host(encode(decision.choices))
        assert offload or "offload" not in decision.choices
        assert recompute or "recompute" not in decision.choices
        again = simulate(
            work, decision.choices, decision.configurations, memory=memory, schedule=decision.schedule
        )
        assert again == decision.timeline

    def test_nothing_moves_if_all_fits(self) -> None:
        work = make_work()
        decision = decide_memory(work, 10**6)
        assert decision.choices == ("keep",) * 3
        assert list(decision.configurations) == work.fastest
        assert decision.timeline.exposed_ms == 0.0
        assert decision.bound_ms == decision.timeline.time_ms

    @pytest.mark.parametrize("part", [0.5, 0.6])
    def test_no_clock_changes_a_decision(self, part: float, monkeypatch: pytest.MonkeyPatch) -> None:
        work = vgg16(64)
        memory = int(part * decide_memory(work, 2**60).timeline.peak)
        expected = decide_memory(work, memory)
        ticks = itertools.count(0.0, 1000.0)  # seconds, one tick each time that the planner looks
        monkeypatch.setattr(time, "monotonic", lambda: next(ticks))
        decision = decide_memory(work, memory)
        assert (decision.choices, decision.configurations) == (expected.choices, expected.configurations)

    @pytest.mark.parametrize("part", [0.9, 1.1])
    def test_the_program_need_not_find_an_answer_that_is_slower_than_a_known_one(self, part: float) -> None:
        work = vgg16(64)
        memory = decide_memory(work, 2**60).timeline.peak // 2
        free = FluidProgram(Simulator(work), memory, is_whole=True)
        best = free.solve_whole(math.inf)
        program = FluidProgram(Simulator(work), memory, is_whole=True)
        assert program.solve_whole(part * best) == pytest.approx(min(part, 1) * best, rel=1e-4)
        assert (program.choose() is None) == (part < 1)

    def test_there_is_no_other_policy(self) -> None:
        wrong: Any = "best"
        with pytest.raises(ValueError, match="there is no policy 'best'"):
            decide_memory(make_work(), 100, policy=wrong)


def make_work() -> TrainingStep:
    steps = tuple(StepCost(10.0, 5) for _ in range(8))
    kernel = KernelChoice(2, (configuration(8.0, 0), configuration(2.0, 6)))
    tensors = chain([8, 4, 2], [None, 1.0, None])
    return TrainingStep(steps, tensors, (kernel,), Link(1000, 1000, piece=4))


class TestFloor:
    @given(chains(4), st.booleans(), st.booleans(), st.one_of(st.none(), st.integers(0, 20)))
    def test_it_is_the_least_need_of_all_choices(
        self, work: TrainingStep, offload: bool, recompute: bool, host: int | None
    ) -> None:
        work = replace(work, host_memory=host)
        allowed = [
            choices
            for choices in valid_choices(work)
            if Simulator(work).fits_host(encode(choices))
            and (offload or "offload" not in choices)
            and (recompute or "recompute" not in choices)
        ]
        least, codes = find_floor(work, offload=offload, recompute=recompute)
        choices = decode(codes)
        assert choices in allowed
        assert least == min(need_of(work, choices) for choices in allowed) == need_of(work, choices)

    @given(chains(4))
    def test_a_solver_that_stops_early_gives_bytes_that_are_enough(self, work: TrainingStep) -> None:
        with patch.object(floor, "NODES", 0):
            least, codes = find_floor(work, offload=False)
        choices = decode(codes)
        assert least == need_of(work, choices) >= find_floor(work, offload=False)[0]
        assert "offload" not in choices
