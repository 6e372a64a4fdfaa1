"""The estimate of an algorithm's time, from runs on a simulated machine that other programs disturb."""

import random
import statistics
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mucudnn._native import (
    MOST_ROUNDS,
    RunTime,
    are_disturbed,
    comparable_times,
    estimate,
    find_undisturbed,
    is_decided,
    second_lowest,
)

TIMES = st.floats(0.7, 100.0)


class Machine:
    """A simulated machine with a seeded load.

    A run takes its CPU time, up to 3 % more. A disturbed run also waits for the other programs, which at
    least doubles its wall time on one thread, and holds back one of several threads.
    """

    def __init__(self, seed: int, load: float, threads: int = 1) -> None:
        self._random, self._load, self._threads = random.Random(seed), load, threads

    def run(self, true_ms: float) -> RunTime:
        work_ms = true_ms * (1 + 0.03 * self._random.random())
        waited_ms = 0.0
        if self._random.random() < self._load:
            waited_ms = true_ms * self._random.uniform(1.0, 4.0)
        return RunTime(work_ms + waited_ms, work_ms * self._threads, self._threads)

    def runs(self, true_ms: float, count: int) -> list[RunTime]:
        return [self.run(true_ms) for _ in range(count)]


def quiet(times: Iterable[float], threads: int = 1) -> list[RunTime]:
    return [RunTime(ms, ms * threads, threads) for ms in times]


@given(st.lists(TIMES, min_size=3, max_size=9))
def test_the_second_lowest_time_counts(times: list[float]) -> None:
    assert second_lowest(times) == sorted(times)[1]
    timing = estimate(quiet(times), "A")
    assert (timing.time_ms, timing.wall_ms, timing.cpu_ms) == (sorted(times)[1],) * 3
    assert not timing.is_busy


@given(st.lists(TIMES, min_size=1, max_size=2))
def test_the_lowest_of_fewer_than_three_counts(times: list[float]) -> None:
    assert second_lowest(times) == min(times)


def test_no_runs_are_an_error() -> None:
    with pytest.raises(ValueError, match="no times"):
        estimate([], "A")


def test_on_one_thread_the_cpu_time_of_a_disturbed_run_is_as_good() -> None:
    disturbed = [RunTime(9.0, 2.0), RunTime(20.0, 2.1), RunTime(5.0, 2.2)]
    timing = estimate(disturbed, "A")
    assert timing.time_ms == 2.1
    assert timing.wall_ms == 9.0
    assert timing.is_busy


@pytest.mark.parametrize(("share", "is_undisturbed"), [(0.98, True), (0.96, False)])
def test_a_run_on_one_thread_is_disturbed_below_97_percent_of_its_time(
    share: float, is_undisturbed: bool
) -> None:
    assert find_undisturbed([RunTime(10.0, 10.0 * share)], "A") == [is_undisturbed]


def test_several_threads_are_compared_with_the_algorithms_own_best_share() -> None:
    runs = [RunTime(10.0, 18.0, 2), RunTime(10.0, 17.0, 2), RunTime(20.0, 18.0, 2)]
    assert find_undisturbed(runs, "A") == [True, True, False]
    assert estimate(runs, "A").time_ms == 10.0


def test_without_an_undisturbed_run_several_threads_count_with_their_cpu_time_and_usual_waiting() -> None:
    runs = [RunTime(30.0, 20.0, 2), RunTime(40.0, 22.0, 2), RunTime(50.0, 24.0, 2)]
    assert estimate(runs, "IMPLICIT_GEMM").time_ms == pytest.approx(11.0)
    assert estimate(runs, "WINOGRAD_NONFUSED").time_ms == pytest.approx(13.2)
    assert estimate(runs, "FFT").time_ms == pytest.approx(15.95)
    assert estimate(runs, "FFT").is_busy


def test_one_undisturbed_run_of_several_is_too_few() -> None:
    runs = [RunTime(10.0, 20.0, 2), RunTime(30.0, 20.0, 2), RunTime(30.0, 20.0, 2)]
    assert estimate(runs, "A").is_busy
    assert not estimate(runs[:1], "A").is_busy


def test_on_a_gpu_the_other_runs_and_the_clock_say_what_was_disturbed() -> None:
    assert find_undisturbed([RunTime(1.0), RunTime(1.1), RunTime(2.0)], "A") == [True, True, False]
    throttled = [RunTime(1.0, is_throttled=True), RunTime(1.1, is_throttled=True)]
    assert estimate(throttled, "A").is_busy


def test_a_helper_with_an_unknown_clock_disturbs() -> None:
    assert find_undisturbed([RunTime(1.0, None, 2)], "A") == [False]


@pytest.mark.parametrize("threads", [1, 2])
def test_a_load_misleads_the_median_more_than_the_estimate(threads: int) -> None:
    """Choose the faster of two algorithms 10 % apart, 500 times; a load disturbs 60 % of the runs."""
    wrong_medians = wrong_estimates = 0
    machine = Machine(seed=1, load=0.6, threads=threads)
    for _ in range(500):
        fast, slow = machine.runs(1.0, 7), machine.runs(1.1, 7)
        walls = [statistics.median(run.wall_ms for run in runs) for runs in (fast, slow)]
        wrong_medians += walls[0] > walls[1]
        times = [estimate(runs, "A").time_ms for runs in (fast, slow)]
        wrong_estimates += times[0] > times[1]
    assert wrong_estimates <= 5
    assert wrong_medians > 150


def test_a_comparison_never_sets_an_undisturbed_candidate_against_a_disturbed_one() -> None:
    undisturbed, disturbed = quiet([10.0] * 3, 2), [RunTime(40.0, 18.0, 2)] * 3
    first, second = comparable_times([undisturbed, disturbed])
    assert second_lowest(second) < second_lowest(first)
    first, second = comparable_times([undisturbed, quiet([9.0] * 3, 2)])
    assert (first, second) == ([10.0] * 3, [9.0] * 3)


def test_a_comparison_is_disturbed_if_a_candidate_has_too_few_undisturbed_runs() -> None:
    undisturbed, disturbed = quiet([10.0] * 3, 2), [RunTime(40.0, 18.0, 2)] * 3
    assert are_disturbed([undisturbed, disturbed])
    assert not are_disturbed([undisturbed, [*disturbed, *quiet([9.0] * 2, 2)]])
    assert not are_disturbed([[RunTime(40.0, 18.0)] * 3]), "the CPU time of one thread is exact"
    assert are_disturbed([[RunTime(1.0, is_throttled=True)] * 3]), "a GPU has no such time"


@pytest.mark.parametrize(
    ("difference", "rounds"),
    [(1.3, 3), (1.13, 3), (1.08, 5), (1.06, 7), (1.04, MOST_ROUNDS), (1.0, MOST_ROUNDS)],
)
def test_a_comparison_ends_after_few_rounds_if_the_candidates_differ_much(
    difference: float, rounds: int
) -> None:
    ended = next(count for count in range(1, 99) if is_decided([[1.0] * count, [difference] * count], count))
    assert ended == rounds


def test_the_ladder_finds_the_faster_one_under_a_load() -> None:
    machine, wrong, rounds = Machine(seed=2, load=0.5), 0, 0
    for _ in range(300):
        runs: list[list[RunTime]] = [[], []]
        while not runs[0] or not is_decided(comparable_times(runs), len(runs[0])):
            for own, true_ms in zip(runs, (1.0, 1.1), strict=True):
                own.append(machine.run(true_ms))
        fast, slow = map(second_lowest, comparable_times(runs))
        wrong += fast > slow
        rounds += len(runs[0])
    assert wrong == 0
    assert rounds / 300 < 7
