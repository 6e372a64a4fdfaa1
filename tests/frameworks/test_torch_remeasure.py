"""Kept times of steps and calls are checked after some uses, and replaced if they do not hold."""

from __future__ import annotations

import copy
import itertools
import threading
from collections.abc import Mapping
from pathlib import Path
from random import Random

import pytest
from cached_rows import HERE, KERNEL
from hypothesis import given
from hypothesis import strategies as st
from needs_torch import mt, torch
from step_clock import Clock
from step_runs import CALL, Memory, compared, run_call, steps

from mucudnn.costs.cache import Cache
from mucudnn.costs.checks import MOST_COST
from mucudnn.costs.records import StepUses
from mucudnn.torch.choosing import trials
from mucudnn.torch.choosing.step_comparison import MOST_OVERSPENT
from mucudnn.torch.choosing.trials import STEPS, CallTrials
from mucudnn.torch.compiling import comparison as compiled_comparison
from mucudnn.torch.compiling.operators import CompiledCall

nn = torch.nn
STEP = (CALL, CALL)
UNDER_LOAD = {"choices": 1500.0, "stock": 1400.0}  # the ms of a step on a busy machine
KEY = HERE, KERNEL, "a call"


def kept_under_load() -> Memory:
    memory = Memory()
    memory.kept[STEP] = dict(UNDER_LOAD)
    return memory


def test_a_result_kept_under_load_is_replaced_in_a_long_process() -> None:
    memory, clock = kept_under_load(), Clock()
    comparison = compared(clock, memory)
    first = steps(comparison, clock, STEPS, 1.0, 1.04)
    assert first == ["choices", *["stock"] * (STEPS - 1)], "the kept result says so"
    steps(comparison, clock, 40, 1.0, 1.04)
    assert comparison.result == "choices"
    assert memory.kept[STEP] == pytest.approx({"choices": 1000.0, "stock": 1040.0})


def test_a_result_kept_under_load_is_replaced_after_some_short_processes() -> None:
    memory, clock, results = kept_under_load(), Clock(), []
    for _ in range(10):
        comparison = compared(clock, memory)
        steps(comparison, clock, 40, 1.0, 1.04)
        results.append(comparison.result)
    changed = results.index("choices")
    assert STEPS / 40 <= changed <= 2 * STEPS / 40, "a process may end before it counts its last steps"
    assert set(results[changed:]) == {"choices"}
    assert memory.kept[STEP] == pytest.approx({"choices": 1000.0, "stock": 1040.0})


def runs_of(way: str, ways: list[str], least: int) -> list[int]:
    """Return the lengths of the uninterrupted runs of a way that are at least that long."""
    lengths = [0]
    for other in ways:
        lengths[-1] += other == way
        if other != way:
            lengths.append(0)
    return [length for length in lengths if length >= least]


def test_a_check_of_a_model_that_is_left_to_pytorch_runs_the_choices_again(cache_path: Path) -> None:
    model = mt.convert(nn.Sequential(nn.Conv2d(4, 4, 3), nn.Conv2d(4, 4, 3)))
    own, x = copy.deepcopy(mt.restore(copy.deepcopy(model))), torch.randn(2, 4, 9, 9)
    comparison, clock = model[0]._mucudnn.comparison, Clock()
    comparison._clock = clock
    is_left = []
    for _ in range(2 * STEPS):
        torch.testing.assert_close(model(x), own(x))
        clock.compute(1.0 if comparison._way == "stock" else 1.05)
        is_left.append(vars(model[1])["_conv_forward"].is_stock)
    assert [left for left, _ in itertools.groupby(is_left)][:4] == [False, True, False, True]
    assert comparison.result == "stock"


def test_the_distance_doubles_with_each_check_that_confirms_the_result() -> None:
    memory, clock = Memory(), Clock()
    ways = steps(compared(clock, memory), clock, 8000, 1.0, 1.055)
    first, *others = runs_of("choices", ways, 100)
    assert len(others) >= 4
    for shorter, longer in zip([first, *others[:-2]], others[:-1], strict=True):
        assert longer / shorter == pytest.approx(2.0, rel=0.05)


@given(st.floats(1.02, 20.0), st.booleans())
def test_checks_take_a_small_share_of_the_steps(ratio: float, is_stock_slower: bool) -> None:
    memory, clock = Memory(), Clock()
    ours, stock = (1.0, ratio) if is_stock_slower else (ratio, 1.0)
    comparison = compared(clock, memory)
    while comparison.result is None:
        steps(comparison, clock, 1, ours, stock)
    assert comparison.result == ("choices" if is_stock_slower else "stock")
    start, count = clock.now, 5000
    steps(comparison, clock, count, ours, stock)
    assert clock.now - start <= count * (1 + MOST_COST)


def test_a_check_that_other_programs_disturb_changes_nothing() -> None:
    memory, clock = kept_under_load(), Clock()
    comparison = compared(clock, memory)
    steps(comparison, clock, STEPS - 1, 1.1, 1.0)
    ways = [*steps(comparison, clock, 4, 1.1, 1.0), *steps(comparison, clock, 1, 1.1, 0.1)]
    assert ways[1:] == ["choices", "choices", "stock", "stock"], "one step of PyTorch's own is the shortest"
    while comparison.result is None:
        steps(comparison, clock, 1, 1.1, 1.3)
    assert memory.kept[STEP] == UNDER_LOAD
    assert comparison.result == "stock", "although most steps say the contrary"


def test_a_check_begins_at_once_if_earlier_processes_have_used_the_result_often() -> None:
    memory, clock = kept_under_load(), Clock()
    memory.uses[STEP] = StepUses(STEPS, 0)
    assert "choices" in steps(compared(clock, memory), clock, 6, 1.0, 1.04)[1:]
    assert set(steps(compared(clock, memory), clock, 6, 1.0, 1.04)[1:]) == {"stock"}, "not again"
    memory.uses[STEP] = StepUses(STEPS, 1)
    assert set(steps(compared(clock, memory), clock, 6, 1.0, 1.04)[1:]) == {"stock"}


def test_of_several_processes_one_checks_a_result() -> None:
    memory, clock = kept_under_load(), Clock()
    ranks = [compared(clock, memory) for _ in range(4)]
    checking = set()
    for number in range(STEPS + 20):
        for rank, comparison in enumerate(ranks):
            steps(comparison, clock, 1, 1.4, 1.0)
            if comparison.result is None and number:
                checking.add(rank)
    assert len(checking) == 1


def test_a_check_that_comes_to_no_end_takes_a_small_share_too() -> None:
    memory, clock, random = kept_under_load(), Clock(), Random(1)
    comparison = compared(clock, memory)
    steps(comparison, clock, 1, 3.0, 1.0)
    ways, count = [], 20 * STEPS
    for _ in range(count):
        # A busy machine: steps wait, each for another time, and so no two neighbours can be compared.
        [way] = steps(comparison, clock, 1, 3.0, 1.0)
        ways.append(way)
        if comparison.result is None:
            clock.now += random.uniform(0.2, 1.0) * (3.0 if way == "choices" else 1.0)
    assert memory.kept[STEP] == UNDER_LOAD
    first = 2 * (3.0 - 1.0)  # the kept times let the first check cost this much more
    assert ways.count("choices") > 4, "more than one check begins"
    assert ways.count("choices") * (3.0 - 1.0) <= first + MOST_OVERSPENT * MOST_COST * count


def test_a_thread_that_disturbs_a_check_ends_it() -> None:
    memory, clock = kept_under_load(), Clock()
    comparison = compared(clock, memory)
    steps(comparison, clock, STEPS, 1.2, 1.0)
    assert steps(comparison, clock, 1, 1.2, 1.0) == ["choices"]
    thread = threading.Thread(target=run_call, args=(comparison, 2, CALL))
    thread.start()
    thread.join()
    assert set(steps(comparison, clock, 30, 1.2, 1.0)) == {"stock"}
    assert memory.kept[STEP] == UNDER_LOAD


def test_steps_that_must_have_the_same_bits_are_not_checked() -> None:
    memory, clock = kept_under_load(), Clock()
    comparison = compared(clock, memory)
    steps(comparison, clock, 2, 1.0, 1.04)
    torch.use_deterministic_algorithms(True)
    try:
        assert set(steps(comparison, clock, 3 * STEPS, 1.0, 1.04)) == {"stock"}
    finally:
        torch.use_deterministic_algorithms(False)


class Process:
    """A process that has run for some seconds, and uses kept times in them."""

    def __init__(self, path: Path, seconds: float = 1e6) -> None:
        self.path, self.now = path, seconds
        self.trials = CallTrials(lambda: self.now)
        self.measured = 0

    def use(self, times: Mapping[str, float], check_ms: float = 25.0) -> Mapping[str, float]:
        """Return the times of a call, which are now `times` if they are measured."""

        def measure() -> Mapping[str, float]:
            self.measured += 1
            self.now += check_ms / 1e3
            return times

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MUCUDNN_CACHE", str(self.path))
            return self.trials.find_or_measure(
                KEY, measure, choose=lambda ms: min(ms, key=ms.__getitem__), check_ms=lambda _: check_ms
            )


QUIET, BUSY = {"choices": 1.0, "stock": 2.0}, {"choices": 9.0, "stock": 4.0}


def test_times_of_a_call_kept_under_load_are_replaced_by_the_next_process(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    first = Process(path)
    assert [first.use(BUSY), first.use(QUIET)] == [BUSY, BUSY], "one process measures once"
    later = Process(path)
    assert [later.use(QUIET), later.use(BUSY)] == [QUIET, QUIET]


def test_times_of_a_call_are_measured_again_after_1_2_4_processes(tmp_path: Path) -> None:
    path, measured = tmp_path / "cache.sqlite", []
    for _ in range(16):
        process = Process(path)
        process.use(QUIET)
        measured.append(process.measured)
    assert [number for number, count in enumerate(measured) if count] == [0, 1, 3, 7, 15]


def test_times_that_are_confirmed_stay(tmp_path: Path) -> None:
    path, similar = tmp_path / "cache.sqlite", {"choices": 1.1, "stock": 1.9}
    Process(path).use(QUIET)
    assert Process(path).use(similar) == QUIET
    with Cache.open(path) as cache:
        assert cache.add_uses(*KEY, 0) == (0, 1)


def test_a_contradicted_time_begins_with_the_shortest_distance_again(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    for _ in range(4):
        Process(path).use(BUSY)
    for _ in range(4):
        Process(path).use(QUIET)
    with Cache.open(path) as cache:
        assert cache.step_times(*KEY) == QUIET
        assert cache.add_uses(*KEY, 0) == (0, 0)
    next_process = Process(path)
    next_process.use(QUIET)
    assert next_process.measured == 1


def test_times_are_measured_again_only_if_that_takes_a_small_share_of_all_processes(tmp_path: Path) -> None:
    path, measured = tmp_path / "cache.sqlite", []
    for _ in range(12):
        process = Process(path, seconds=1.0)
        process.use(QUIET, check_ms=80.0)
        measured.append(process.measured)
    assert measured.index(1, 1) == 0.080 / MOST_COST, "then the processes have run long enough"


def test_a_disturbed_measurement_replaces_nothing(tmp_path: Path) -> None:
    path = tmp_path / "cache.sqlite"
    Process(path).use(QUIET)
    process = Process(path)
    assert process.use({}) == QUIET
    assert process.measured == 1
    with Cache.open(path) as cache:
        assert cache.step_times(*KEY) == QUIET
        assert cache.add_uses(*KEY, 0) == (0, 0)


def test_the_choices_of_compiled_calls_stay(cache_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    call = CompiledCall(
        "forward", (2, 4, 9, 9), (4, 4, 3, 3), torch.float32, (1, 1), (1, 1), (1, 1), 1, True, "1MiB"
    )
    inductor, epilogue, engine = "compiled inductor", "compiled epilogue", "compiled engine 2 ALGORITHM"
    first, later = {inductor: 1.0, epilogue: 0.0, engine: 3.0}, {inductor: 1.0, epilogue: 0.0, engine: 0.5}
    for times in (first, later):
        monkeypatch.setattr(trials, "of_process", CallTrials(lambda: 1e6))
        monkeypatch.setattr(compiled_comparison, "_measure", lambda *_, times=times: times)
        assert compiled_comparison.choose(call, None) is None, "so that all processes compute the same bits"
