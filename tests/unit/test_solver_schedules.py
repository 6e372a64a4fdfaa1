"""Pipelines: each schedule's time, memory and order are those that its formula and its paper give."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import examples

from mucudnn.solver import Infeasible
from mucudnn.solver.devices.pipelines import (
    PeerLink,
    PipelineTimeline,
    Stage,
    choose_schedule,
    simulate_pipeline,
)
from mucudnn.solver.devices.schedules import SCHEDULES, Schedule, Task, gems, gpipe, one_forward_one_backward

F, B = 1.0, 2.0


def even(stages: int) -> list[Stage]:
    return [Stage(F, B, activations=100, input=10, weights=1000)] * stages


def run(name: str, stages: int, micro_batches: int) -> PipelineTimeline:
    return simulate_pipeline(SCHEDULES[name](stages, micro_batches), even(stages))


@pytest.mark.parametrize("stages", [2, 3, 4, 8, 16])
def test_a_pair_of_gems_takes_the_time_of_the_papers_formula(stages: int) -> None:
    assert run("gems", stages, 2).time_ms == stages * (F + 2 * B) + F


@pytest.mark.parametrize("stages", [1, 2, 4, 8])
@pytest.mark.parametrize("micro_batches", [1, 2, 8, 32])
def test_schedules_take_the_times_of_their_formulas(stages: int, micro_batches: int) -> None:
    n, d = micro_batches, stages
    assert run("layers", d, n).time_ms == n * d * (F + B)
    assert run("gpipe", d, n).time_ms == (d - 1 + n) * (F + B)
    assert run("1f1b", d, n).time_ms == (d - 1 + n) * (F + B)
    assert run("1f1b, recompute", d, n).time_ms == (d - 1 + n) * (F + B + F)


@pytest.mark.parametrize("stages", [2, 3, 4, 8])
def test_each_schedule_keeps_as_many_activations_as_its_docstring_says(stages: int) -> None:
    n = 12
    assert set(run("gems", stages, n).live) == {1}
    assert set(run("layers", stages, n).live) == {1}
    assert set(run("gpipe", stages, n).live) == {n}
    assert run("1f1b", stages, n).live == tuple(range(stages, 0, -1))
    assert max(run("bidirectional", stages, n).live) <= stages


def test_a_rank_holds_its_stages_weights_and_its_live_activations() -> None:
    assert run("gems", 4, 8).peaks == (2 * 1000 + 100,) * 4
    assert run("gpipe", 4, 8).peaks == (1000 + 8 * 100,) * 4
    assert run("1f1b", 4, 8).peaks == (1400, 1300, 1200, 1100)
    # Inputs of the live micro-batches, and all activations of the one that runs backward.
    assert run("1f1b, recompute", 4, 8).peaks == (1130, 1120, 1110, 1100)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("stages", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("micro_batches", [1, 2, 5, 12])
def test_every_schedule_runs_every_task_once_on_the_rank_that_holds_its_stage(
    name: str, stages: int, micro_batches: int
) -> None:
    schedule = SCHEDULES[name](stages, micro_batches)
    tasks = [task for order in schedule.orders for task in order]
    assert len(tasks) == len(set(tasks)) == 2 * stages * micro_batches
    assert {(t.pass_, t.micro_batch, t.stage) for t in tasks} == set(
        itertools.product(("forward", "backward"), range(micro_batches), range(stages))
    )
    for rank, order in enumerate(schedule.orders):
        assert {(task.stage, task.replica) for task in order} <= set(schedule.stages_of(rank))
    assert simulate_pipeline(schedule, even(stages)).time_ms >= 0


times = st.floats(0.0, 100.0)
stage_costs = st.builds(
    Stage,
    times,
    times,
    activations=st.integers(50, 100),
    input=st.integers(0, 50),
    weights=st.integers(0, 50),
)
links = st.builds(PeerLink, st.floats(0.0, 5.0), st.floats(1.0, 1e6))


@settings(max_examples=examples(60))
@given(
    st.sampled_from(sorted(SCHEDULES)),
    st.lists(stage_costs, min_size=1, max_size=5),
    st.integers(1, 6),
    links,
)
def test_a_task_starts_as_soon_as_its_rank_and_its_input_allow(
    name: str, stages: list[Stage], micro_batches: int, link: PeerLink
) -> None:
    schedule = SCHEDULES[name](len(stages), micro_batches)
    timeline = simulate_pipeline(schedule, stages, link)
    start, end = {}, {}
    for order, starts, ends in zip(schedule.orders, timeline.starts_ms, timeline.ends_ms, strict=True):
        start |= dict(zip(order, starts, strict=True))
        end |= dict(zip(order, ends, strict=True))
    for order in schedule.orders:
        for position, task in enumerate(order):
            needs = [end[order[position - 1]]] if position else []
            i, s, r = task.micro_batch, task.stage, task.replica
            if task.pass_ == "forward" and s > 0:
                needs.append(end[Task("forward", i, s - 1, r)] + link.milliseconds(stages[s].input))
            elif task.pass_ == "backward" and s + 1 < len(stages):
                needs.append(end[Task("backward", i, s + 1, r)] + link.milliseconds(stages[s + 1].input))
            elif task.pass_ == "backward":
                needs.append(end[Task("forward", i, s, r)])
            assert start[task] == max(needs, default=0.0)


@settings(max_examples=examples(60))
@given(st.lists(stage_costs, min_size=1, max_size=5), st.integers(1, 6), st.integers(0, 1000), links)
def test_the_choice_is_the_fastest_schedule_that_fits(
    stages: list[Stage], micro_batches: int, memory: int, link: PeerLink
) -> None:
    all_of_them = [
        simulate_pipeline(make(len(stages), micro_batches), stages, link) for make in SCHEDULES.values()
    ]
    fitting = [timeline for timeline in all_of_them if timeline.peak <= memory]
    if not fitting:
        with pytest.raises(Infeasible) as raised:
            choose_schedule(stages, micro_batches, memory=memory, link=link)
        assert raised.value.need == min(timeline.peak for timeline in all_of_them)
        return
    chosen = choose_schedule(stages, micro_batches, memory=memory, link=link)
    assert chosen.peak <= memory
    assert chosen.time_ms == min(timeline.time_ms for timeline in fitting)


def test_one_live_activation_is_where_gems_is_chosen() -> None:
    stages = [Stage(F, B, activations=1000, input=990, weights=10)] * 4
    chosen = choose_schedule(stages, 8, memory=1100)
    assert chosen.schedule.name == "gems"
    assert choose_schedule(stages, 8).schedule.name in {"gpipe", "1f1b", "bidirectional"}


def test_orders_that_wait_for_each_other_are_refused() -> None:
    swapped = Schedule("swapped", tuple(order[::-1] for order in gpipe(2, 1).orders))
    with pytest.raises(ValueError, match="rank 0 waits forever for the backward of micro-batch 0 in stage 0"):
        simulate_pipeline(swapped, even(2))


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"forward_ms": -1.0}, "forward_ms of a stage is -1.0"),
        ({"backward_ms": math.nan}, "backward_ms of a stage is nan"),
        ({"activations": 1, "input": 2}, "keeps 1 bytes, fewer than the 2 bytes of its input"),
    ],
)
def test_wrong_costs_are_refused(figures: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Stage(**({"forward_ms": 1.0, "backward_ms": 1.0} | figures))  # type: ignore[arg-type]  # mixed figures


@pytest.mark.parametrize(("stages", "micro_batches"), [(0, 1), (1, 0), (-2, 3)])
def test_a_schedule_needs_a_stage_and_a_micro_batch(stages: int, micro_batches: int) -> None:
    for make in (gems, gpipe, one_forward_one_backward):
        with pytest.raises(ValueError, match="must be at least 1"):
            make(stages, micro_batches)


def test_costs_for_another_number_of_stages_are_refused() -> None:
    with pytest.raises(ValueError, match="the schedule has 3 stages, costs are given for 2"):
        simulate_pipeline(gpipe(3, 1), even(2))
