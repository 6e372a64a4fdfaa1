"""The simulated training step agrees with hand computation and with a simulation in ticks."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mucudnn.solver import Infeasible
from mucudnn.solver.memory.copies import CopySteps, Link
from mucudnn.solver.memory.timeline import Timeline, simulate
from mucudnn.solver.memory.training import Choice, Replay, SavedTensor, StepCost, TrainingStep
from tests.unit.training_steps import (
    chain,
    chains,
    required_bytes,
    simulate_in_ticks,
    valid_choices,
    with_replayed_kernels,
)

LINK = Link(1000, 1000, piece=4)  # a byte in a millisecond


def steps_of(*times: float, fixed: int = 0, workspace: int = 0) -> list[StepCost]:
    return [StepCost(time, fixed, workspace) for time in times]


def simulated(
    steps: Sequence[StepCost],
    tensors: Sequence[SavedTensor],
    choices: Sequence[Choice],
    link: Link = LINK,
    **options: Any,
) -> Timeline:
    return simulate(TrainingStep(tuple(steps), tuple(tensors), (), link), choices, **options)


# Step 0 writes the tensor, step 1 reads it, steps 4 and 5 read it backward.
TENSOR = SavedTensor("x", 6, 0, 1, 4, 5)


class TestByHand:
    def test_a_kept_tensor_is_in_memory_from_its_step_to_its_last_use(self) -> None:
        timeline = simulated(steps_of(1, 1, 1, 1, 1, 1, 1, fixed=10, workspace=5), [TENSOR], ["keep"])
        assert timeline.memory == ((0.0, 21), (6.0, 15))
        assert (timeline.time_ms, timeline.exposed_ms, timeline.peak) == (7.0, 0.0, 21)
        assert timeline.average == pytest.approx((6 * 21 + 15) / 7)
        assert timeline.copies == ()

    def test_copies_hide_behind_long_steps(self) -> None:
        timeline = simulated(steps_of(10, 10, 10, 10, 10, 10), [TENSOR], ["offload"], window=1)
        assert [(copy.direction, copy.start_ms, copy.end_ms, copy.bytes) for copy in timeline.copies] == [
            ("out", 10.0, 14.0, 4),
            ("out", 14.0, 16.0, 2),
            ("in", 30.0, 34.0, 4),
            ("in", 34.0, 36.0, 2),
        ]
        assert timeline.exposed_ms == 0.0
        assert timeline.memory == ((0.0, 6), (20.0, 0), (30.0, 6))
        assert timeline.step_bytes == (6, 6, 0, 6, 6, 6)

    def test_a_schedule_bounds_the_copies(self) -> None:
        bounds = CopySteps(out_from=1, out_by=2, in_from=3, in_by=4)
        timeline = simulated(steps_of(1, 1, 1, 1, 1, 1), [TENSOR], ["offload"], schedule={0: bounds})
        assert timeline.starts_ms == (0.0, 1.0, 7.0, 8.0, 14.0, 15.0)

    def test_no_steps_take_no_time(self) -> None:
        timeline = simulated([], [], [])
        assert (timeline.time_ms, timeline.exposed_ms, timeline.peak, timeline.average) == (0.0, 0.0, 0, 0.0)


class TestErrors:
    def test_memory_below_the_need_is_infeasible_and_the_need_is_enough(self) -> None:
        steps = steps_of(1, 1, 1, 1, 1, 1, fixed=10)
        with pytest.raises(Infeasible, match="it needs 16 bytes") as caught:
            simulated(steps, [TENSOR], ["offload"], memory=15)
        assert (caught.value.limit, caught.value.need) == (15, 16)
        assert simulated(steps, [TENSOR], ["offload"], memory=16).peak == 16

    def test_a_schedule_that_never_gets_its_memory_is_infeasible(self) -> None:
        steps = [*steps_of(1, 1), StepCost(1, 0, 0), StepCost(1, 0, 5), *steps_of(1, 1)]
        early = {0: CopySteps(in_from=2, in_by=3)}
        with pytest.raises(Infeasible, match="the schedule does not fit 10 bytes: 11 bytes") as caught:
            simulated(steps, [TENSOR], ["offload"], memory=10, schedule=early)
        assert caught.value.need == 11

    @pytest.mark.parametrize(
        ("choices", "message"),
        [
            (["recompute", "keep"], "tensor t0 cannot be recomputed"),
            (["keep"], "1 choices are given for 2 tensors"),
        ],
    )
    def test_impossible_choices_are_refused(self, choices: list[Choice], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            simulated(steps_of(*[1] * 6), chain([1, 1], [None, 1.0]), choices)

    def test_a_source_that_is_recomputed_is_refused(self) -> None:
        with pytest.raises(ValueError, match="tensor t1 is recomputed from tensor t0"):
            simulated(steps_of(*[1] * 6), chain([1, 1], [1.0, 1.0]), ["recompute", "recompute"])

    @pytest.mark.parametrize(
        ("make", "message"),
        [
            (lambda: SavedTensor("x", 1, 1, 0, 2, 3), "tensor x is written and used at the steps"),
            (lambda: SavedTensor("x", -1, 0, 0, 2, 3), "size of tensor x is -1"),
            (lambda: Replay(math.nan), "time_ms of a replay is nan"),
            (lambda: Link(0, 1), "out_bandwidth is 0"),
            (lambda: Link(1, 1, 0), "piece is 0"),
            (lambda: TrainingStep((), (TENSOR,), (), LINK), "there is no step 5"),
        ],
    )
    def test_wrong_numbers_are_refused(self, make: Any, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            make()


@st.composite
def simulations(draw: st.DrawFn) -> tuple[TrainingStep, tuple[Choice, ...], int, int]:
    work = draw(chains())
    choices = draw(st.sampled_from(valid_choices(work)))
    spare = draw(st.one_of(st.integers(0, 12), st.just(10**6)))
    return work, choices, spare, draw(st.integers(0, 4))


def fit(work: TrainingStep, choices: tuple[Choice, ...], spare: int) -> int:
    """Return the memory that the choice needs at least, and the bytes to spare."""
    with pytest.raises(Infeasible) as caught:
        simulate(work, choices, work.fastest, memory=-1)
    assert caught.value.need is not None
    return caught.value.need + spare


def play(work: TrainingStep, choices: tuple[Choice, ...], memory: int | None, window: int) -> Timeline:
    return simulate(work, choices, work.fastest, memory=memory, window=window)


class TestProperties:
    @given(with_replayed_kernels(chains()), st.integers(0, 12), st.integers(0, 4), st.data())
    def test_ticks_agree(self, work: TrainingStep, spare: int, window: int, data: st.DataObject) -> None:
        work = replace(work, steps=tuple(replace(step, time_ms=step.time_ms + 1) for step in work.steps))
        choices = data.draw(st.sampled_from(valid_choices(work)))
        configurations = [data.draw(st.integers(0, len(k.configurations) - 1)) for k in work.kernels]
        memory = max(required_bytes(work, choices, configurations)) + spare
        timeline = simulate(work, choices, configurations, memory=memory, window=window)
        settled = work.settle(configurations)
        ticks = simulate_in_ticks(settled.steps, settled.tensors, choices, work.link, memory, window)
        assert timeline.time_ms == pytest.approx(ticks.time_ms)
        assert timeline.exposed_ms == pytest.approx(ticks.exposed_ms)
        assert timeline.peak == ticks.peak
        assert timeline.average * timeline.time_ms == pytest.approx(ticks.byte_ms)
        assert simulate(settled, choices, memory=memory, window=window) == timeline

    @given(simulations())
    def test_memory_is_never_above_the_limit(
        self, drawn: tuple[TrainingStep, tuple[Choice, ...], int, int]
    ) -> None:
        work, choices, spare, window = drawn
        memory = fit(work, choices, spare)
        timeline = play(work, choices, memory, window)
        assert timeline.peak == max(held for _, held in timeline.memory) <= memory
        assert timeline.peak >= max(timeline.step_bytes)

    @given(simulations())
    def test_kept_tensors_are_in_memory_together(
        self, drawn: tuple[TrainingStep, tuple[Choice, ...], int, int]
    ) -> None:
        work, choices, spare, window = drawn
        timeline = play(work, choices, fit(work, choices, spare), window)
        kept = [t for t, choice in zip(work.tensors, choices, strict=True) if choice == "keep"]
        for step in range(len(work.steps)):
            alive = sum(t.bytes for t in kept if t.produced_at <= step <= t.last_use)
            assert timeline.peak >= timeline.step_bytes[step] >= alive + work.steps[step].fixed

    @given(st.data())
    def test_no_schedule_lets_a_step_wait_for_ever(self, data: st.DataObject) -> None:
        work = data.draw(chains())
        steps = st.one_of(st.none(), st.integers(0, len(work.steps) - 1))
        schedule = {
            i: data.draw(st.builds(CopySteps, steps, steps, steps, steps)) for i in range(len(work.tensors))
        }
        choices = data.draw(st.sampled_from(valid_choices(work)))
        run = partial(simulate, work, choices, work.fastest, schedule=schedule)
        free = run()
        assert run(memory=free.peak) == free
        with pytest.raises(Infeasible) as caught:
            run(memory=-1)
        assert caught.value.need is not None
        with suppress(Infeasible):  # a schedule may want a tensor back before its memory is free
            run(memory=caught.value.need)
