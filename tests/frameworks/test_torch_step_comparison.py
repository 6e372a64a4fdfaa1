"""Whole steps are compared with PyTorch's own, and the faster way stays."""

from __future__ import annotations

import os
import threading
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from needs_torch import torch
from step_clock import BusyClock, Clock
from step_runs import CALL, CLEAR, LITTLE, OTHER, Memory, compared, run_call, steps

from mucudnn.torch.choosing.step_comparison import StepComparison


@pytest.mark.parametrize(
    ("ours", "stock", "mixture", "result"),
    [(1.0, 2.0, None, "choices"), (2.0, 1.0, None, "stock"), (2.0, 2.0, 1.0, "mixture")],
)
def test_a_comparison_has_its_result_once_it_has_ended(
    ours: float, stock: float, mixture: float | None, result: str
) -> None:
    clock = Clock()
    comparison = compared(clock)
    assert comparison.result is None, "no step has run"
    steps(comparison, clock, 4, ours, stock, mixture)
    assert comparison.result is None
    steps(comparison, clock, 20, ours, stock, mixture)
    assert comparison.result == result


@given(st.permutations([1.0, 1.03, 1.3]))
def test_the_fastest_of_three_ways_stays(times: list[float]) -> None:
    clock = Clock()
    comparison = compared(clock)
    steps(comparison, clock, 30, *times)
    fastest = ("choices", "stock", "mixture")[times.index(1.0)]
    assert set(steps(comparison, clock, 5, *times)) == {fastest}


def test_a_mixture_that_is_another_way_gets_no_steps() -> None:
    for gain in (CLEAR, LITTLE):
        clock = Clock()
        assert "mixture" not in steps(compared(clock), clock, 30, 1.0, 1.05, gain=gain)


def test_the_closer_the_ways_the_more_steps_compare_them() -> None:
    for stock, count in ((2.0, 2), (1.2, 3), (1.07, 5), (1.04, 7)):
        clock = Clock()
        ways = steps(compared(clock), clock, 30, 1.0, stock)
        assert ways.count("stock") in (count, count + 1)


def test_pytorchs_own_stays_unless_another_way_saves_more_than_times_err() -> None:
    for ours, mixture, result in ((0.99, 0.99, "stock"), (0.98, 1.0, "choices"), (1.0, 0.98, "mixture")):
        memory, clock = Memory(), Clock()
        comparison = compared(clock, memory)
        steps(comparison, clock, 30, ours, 1.0, mixture)
        assert comparison.result == result
        later = compared(clock, memory)
        steps(later, clock, 2, ours, 1.0, mixture)
        assert later.result == result, "from the times that the first comparison kept"


def test_a_way_that_is_far_behind_gets_two_steps() -> None:
    clock = Clock()
    ways = steps(compared(clock), clock, 40, 2.0, 1.05, 1.0)
    assert ways.count("choices") == 1 + 2, "the first step decides about the calls"
    assert ways.count("stock") in (7, 8)


def test_one_slow_step_does_not_decide() -> None:
    clock = Clock()
    comparison = compared(clock)
    steps(comparison, clock, 2, 1.0, 2.0)
    clock.now += 100.0
    steps(comparison, clock, 30, 1.0, 2.0)
    assert steps(comparison, clock, 1, 1.0, 2.0) == ["choices"]


def test_steps_that_other_programs_disturbed_do_not_count() -> None:
    memory, clock = Memory(), BusyClock()
    comparison = compared(clock, memory)
    steps(comparison, clock, 120, 1.0, 1.2)
    assert comparison.result == "choices", "although the median step took twice as long"


def test_nothing_is_compared_while_a_call_is_undecided() -> None:
    clock = Clock()
    comparison = compared(clock)
    assert set(steps(comparison, clock, 30, 1.0, 0.5, gain=None)) == {"choices"}
    assert "stock" in steps(comparison, clock, 30, 1.0, 0.5)


def test_a_model_that_runs_pytorchs_own_anyway_compares_nothing() -> None:
    clock = Clock()
    comparison = compared(clock)
    first, second, *others = steps(comparison, clock, 30, 1.0, 0.5, gain=0.0)
    assert (first, second) == ("choices", "choices"), "the first step measures"
    assert set(others) == {"stock"}, "the same way, without the work of looking choices up"


@pytest.mark.parametrize(("ours", "stock", "faster"), [(1.0, 1.04, "choices"), (1.04, 1.0, "stock")])
def test_a_later_process_follows_the_times_of_an_earlier_one(ours: float, stock: float, faster: str) -> None:
    memory, clock = Memory(), Clock()
    steps(compared(clock, memory), clock, 30, ours, stock)
    assert memory.kept == {(CALL, CALL): pytest.approx({"choices": ours * 1e3, "stock": stock * 1e3})}
    later = steps(compared(clock, memory), clock, 30, ours, stock)
    assert later == ["choices", *[faster] * 29], "the first step identifies the steps"
    steps(compared(clock, memory), clock, 30, stock, ours, call=OTHER)
    assert memory.kept.keys() == {(CALL, CALL), (OTHER, OTHER)}, "steps with other calls are compared"


def test_a_later_process_runs_the_mixture_of_an_earlier_one() -> None:
    memory, clock = Memory(), Clock()
    steps(compared(clock, memory), clock, 60, 1.02, 1.05, 1.0)
    [kept] = memory.kept.values()
    assert kept == pytest.approx({"choices": 1020.0, "stock": 1050.0, "mixture": 1000.0})
    assert steps(compared(clock, memory), clock, 3, 1.25, 1.5, 1.0) == ["choices", "mixture", "mixture"]
    kept["another version's way"] = 0.1
    del kept["mixture"]
    assert steps(compared(clock, memory), clock, 3, 1.25, 1.5, 1.0) == ["choices"] * 3


def test_one_lucky_step_does_not_decide_and_its_comparison_is_not_kept() -> None:
    memory, clock = Memory(), Clock()
    comparison = compared(clock, memory)
    for ours, count in ((5.0, 1), (0.1, 1), (5.0, 30)):
        steps(comparison, clock, count, ours, 2.0)
    assert comparison.result == "stock"
    assert memory.kept == {}


@pytest.mark.parametrize("rest", ["after the first steps", "all the time"])
@pytest.mark.parametrize(("ours", "stock", "faster"), [(1.03, 1.0, "stock"), (1.0, 1.03, "choices")])
def test_a_processor_that_slows_down_does_not_decide(
    rest: str, ours: float, stock: float, faster: str
) -> None:
    clock = Clock()
    comparison = compared(clock)
    for step in range(30):
        slower = 1 + (0.01 * step if rest == "all the time" else 0.25 * (step > 2))
        steps(comparison, clock, 1, ours * slower, stock * slower)
    assert comparison.result == faster


@given(st.permutations([1.0, 1.05, 1.3]), st.integers(7, 20), st.floats(1.0, 10.0))
def test_slow_steps_of_a_while_do_not_decide(times: list[float], start: int, factor: float) -> None:
    clock = Clock()
    comparison = compared(clock)
    for step in range(60):
        slower = factor if start <= step < start + 3 else 1.0
        steps(comparison, clock, 1, *(slower * time for time in times))
    assert comparison.result == ("choices", "stock", "mixture")[times.index(1.0)]


def test_half_of_the_times_are_none() -> None:
    memory, clock = Memory(), Clock()
    memory.kept[CALL, CALL] = {"choices": 1.0}
    assert "stock" in steps(compared(clock, memory), clock, 30, 1.0, 2.0)


def test_each_shape_has_its_result() -> None:
    clock = Clock()
    comparison = compared(clock)
    training, evaluation = "training", "evaluation"
    steps(comparison, clock, 30, 1.0, 0.5)
    steps(comparison, clock, 30, 0.5, 1.0, call=OTHER)
    for _ in range(30):  # a program that alternates
        steps(comparison, clock, 2, 1.5, 1.25, 1.0, call=training)
        steps(comparison, clock, 1, 1.5, 1.0, 1.25, call=evaluation)
    assert steps(comparison, clock, 1, 1.0, 0.5) == ["stock"]
    assert steps(comparison, clock, 1, 0.5, 1.0, call=OTHER) == ["choices"]
    assert steps(comparison, clock, 1, 1.5, 1.25, 1.0, call=training) == ["mixture"]
    assert steps(comparison, clock, 1, 1.5, 1.0, 1.25, call=evaluation) == ["stock"]


def test_a_step_that_calls_the_first_module_twice_is_compared_with_its_like() -> None:
    clock = Clock()
    comparison = compared(clock)
    for _ in range(30):
        for modules, ours, stock in (((1, 2), 1.0, 2.0), ((1,), 0.1, 0.2)):
            wanted = [run_call(comparison, module, CALL) for module in modules]
            clock.now += stock if wanted[0] else ours
    assert steps(comparison, clock, 4, 1.0, 2.0) == ["choices"] * 4


def test_steps_that_never_repeat_end_without_a_result() -> None:
    clock = Clock()
    comparison = compared(clock)
    every = tuple(range(1, 422))
    for number in range(421):
        for module in every if number == 0 else every[:number]:
            run_call(comparison, module, CALL)
        clock.now += 1.0
    assert steps(comparison, clock, 4, 1.0, 2.0) == ["choices"] * 4


def test_programs_that_want_the_same_bits_every_time_have_no_comparison() -> None:
    clock = Clock()
    torch.use_deterministic_algorithms(True)
    try:
        assert set(steps(compared(clock), clock, 30, 1.0, 0.5)) == {"choices"}
    finally:
        torch.use_deterministic_algorithms(False)


def alternating_steps(
    comparison: StepComparison, clock: Clock, count: int, seconds: float, ratios: tuple[float, float]
) -> list[str]:
    """Run steps of `seconds` with the choices. Return the way of each step.

    A step with PyTorch's own convolutions takes `ratios[0]` times as long, the next such step `ratios[1]`
    times, and so on, in alternation.
    """
    ways: list[str] = []
    for _ in range(count):
        stock = seconds * ratios[ways.count("stock") % 2]
        ways += steps(comparison, clock, 1, seconds, stock)
    return ways


@pytest.mark.parametrize(("seconds", "count"), [(1.0, 7), (0.2, 15), (1e-3, 64)])
def test_steps_are_compared_for_three_seconds_or_64_of_each_way(seconds: float, count: int) -> None:
    clock = Clock()
    comparison = compared(clock)
    ways = alternating_steps(comparison, clock, 2 * count - 2, seconds, (1.03, 1.005))
    assert comparison.result is None
    ways = alternating_steps(comparison, clock, 6, seconds, (1.03, 1.005))
    assert comparison.result == ways[-1] == "choices"


def test_where_it_is_open_which_way_is_faster_twice_as_many_steps_run_and_stock_stays() -> None:
    clock = Clock()
    comparison = compared(clock)
    ways = alternating_steps(comparison, clock, 60, 1.0, (1.2, 0.97))
    assert comparison.result == "stock"
    assert ways.count("choices") in (1 + 14, 1 + 15), "the first step decides about the calls"


@pytest.mark.parametrize("seconds", [1.0, 0.1])
@pytest.mark.parametrize(
    ("ratio", "least", "most"), [(1.1, 95, 100), (1.05, 55, 100), (1.0, 0, 25), (0.97, 0, 5), (0.94, 0, 1)]
)
def test_of_a_hundred_models_few_get_slower_by_chance(
    seconds: float, ratio: float, least: int, most: int
) -> None:
    chosen = 0
    for seed in range(100):
        clock, random = Clock(), Random(seed)
        comparison = compared(clock)
        for _ in range(300):
            own = seconds * random.lognormvariate(0, 0.04)  # each step varies by 4 %
            steps(comparison, clock, 1, own, ratio * own)
        chosen += comparison.result == "choices"
    assert least <= chosen <= most


def test_steps_of_another_kind_decide_between_the_ways_that_these_steps_left() -> None:
    # A mixture is the same as the choices in the steps of the second kind, and the choices lost in the first.
    clock = Clock()
    comparison = compared(clock)
    first = steps(comparison, clock, 8, 9.0, 1.03, 1.0)
    assert {first.count(way) for way in ("stock", "mixture")} <= {2, 3}, "the choices are far behind"
    for kind in ("a new call", "the new call again"):
        for module in (1, 3):
            run_call(comparison, module, CALL)
        clock.now += 1.0
        assert comparison.result is None, kind
    assert set(steps(comparison, clock, 30, 9.0, 1.03, 1.0)[-5:]) == {"mixture"}


def test_a_thread_that_meets_another_one_in_a_comparison_goes_on_and_the_step_does_not_count() -> None:
    clock = Clock()
    entered, go_on = threading.Barrier(2), threading.Barrier(2)

    class Slow(Memory):
        """A cache that the second thread does not wait for."""

        def step_times(self, *calls: str) -> dict[str, float]:
            if threading.current_thread() is not threading.main_thread():
                entered.wait(60)
                go_on.wait(60)
            return {}

    comparison = compared(clock, Slow())
    steps(comparison, clock, 1, 1.0, 2.0, call=CALL)
    other = threading.Thread(target=run_call, args=(comparison, 1, CALL))
    other.start()
    entered.wait(60)
    steps(comparison, clock, 3, 1.0, 2.0)
    assert all(not like.times for like in comparison._similar_steps.everything().values())
    go_on.wait(60)
    other.join()
    steps(comparison, clock, 30, 1.0, 2.0)
    assert comparison.result == "choices"


def test_a_child_of_a_fork_compares_although_another_thread_did_so_at_the_fork() -> None:
    clock = Clock()
    comparison = compared(clock)
    with comparison._lock:
        child = os.fork()
        if child == 0:
            steps(comparison, clock, 30, 1.0, 2.0)
            os._exit(0 if comparison.result == "choices" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_ever_new_shapes_and_a_first_module_that_is_called_no_more_take_bounded_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("mucudnn.torch.choosing.step_comparison._MOST_SHAPES", 4)
    monkeypatch.setattr("mucudnn.torch.choosing.step_comparison._MOST_CALLS", 8)
    clock = Clock()
    comparison = compared(clock)
    for number in range(50):
        steps(comparison, clock, 2, 1.5, 1.25, 1.0, call=f"shape {number}")
    kept = (
        comparison._similar_steps.everything(),
        comparison._seen.everything(),
        comparison._unclear.everything(),
    )
    assert all(len(entries) <= most for entries, most in zip(kept, (8, 16, 16), strict=True))
    for number in range(50):
        run_call(comparison, 2, f"shape {number}")
    assert comparison.first_layer == 2, "it begins the steps from now on"
    assert len(comparison._called) <= 8
