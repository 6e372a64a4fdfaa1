from pathlib import Path
from typing import Any, cast

import pytest
from cached_rows import KERNEL
from fake_engine import FakeAlgorithm, FakeDivision, FakeEngine
from hypothesis import given
from hypothesis import strategies as st

from mucudnn._native import Engine
from mucudnn.cli.sweep import cliff_sentence
from mucudnn.costs.cache import Cache
from mucudnn.errors import UsageError
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.runners import Exhaustive
from mucudnn.plans.sweep import JUMP, Cliff, Sweep, SweepPoint, find_cliffs, parse_sizes, sweep
from mucudnn.solver import Configuration, MicroConfiguration

MiB = 2**20


def points(*per_sample: float | None) -> list[SweepPoint]:
    """Return points at mini-batch 1, 2, ... with these times for each sample."""
    made = []
    for size, time_ms in enumerate(per_sample, 1):
        whole = None if time_ms is None else MicroConfiguration(size, "A", size * time_ms, 0)
        made.append(SweepPoint(size, Configuration((whole,)) if whole else None, None))
    return made


def cliff_sizes(*per_sample: float | None) -> list[int]:
    return [cliff.point.mini_batch for cliff in find_cliffs(points(*per_sample))]


def run(
    cache: Cache, engine: FakeEngine, sizes: tuple[int, ...] | None, limit: int | None = None
) -> tuple[Sweep, int]:
    bench = Bench(cast(Engine, engine), cache, Listener(), Exhaustive())
    (swept,) = sweep(bench, [KERNEL], sizes, limit)
    return swept, bench.made.total()


def three_times_slower_from_6_on(n: int) -> float:
    return n * (1.0 if n < 6 else 3.0)


@pytest.mark.parametrize(
    ("text", "sizes"),
    [
        ("1-4", (1, 2, 3, 4)),
        ("16,8,8", (8, 16)),
        ("1-3, 8,10-11", (1, 2, 3, 8, 10, 11)),
        ("powers", ()),
    ],
)
def test_sizes_are_ranges_and_lists(text: str, sizes: tuple[int, ...]) -> None:
    assert parse_sizes(text) == sizes


@pytest.mark.parametrize("text", ["", "a", "4-1", "0", "1-", "-1", "1.5", "1-99999999", "²"])
def test_what_is_no_list_of_sizes_is_refused_by_name(text: str) -> None:
    with pytest.raises(UsageError, match="size"):
        parse_sizes(text)


def test_after_a_single_fast_size_the_usual_time_is_no_cliff() -> None:
    assert cliff_sizes(1.0, 1.0, 1.0, 0.5, 1.0) == []


def test_the_first_size_that_nothing_undivided_fits_is_a_cliff() -> None:
    assert cliff_sizes(1.0, 1.0, None, None) == [3]


def test_a_size_that_fits_again_is_no_cliff() -> None:
    assert cliff_sizes(1.0, None, 5.0) == [2]


@given(st.lists(st.floats(1.0, JUMP), max_size=20))
def test_times_within_the_jump_make_no_cliff(times: list[float]) -> None:
    assert cliff_sizes(*times) == []


def test_a_division_avoids_the_cliff() -> None:
    with Cache.in_memory(Path("none")) as cache:
        swept, _ = run(cache, FakeEngine({"A": FakeAlgorithm(three_times_slower_from_6_on)}), (4, 5, 6, 7))
    assert [cliff.point.mini_batch for cliff in swept.cliffs] == [6]
    at_6 = swept.cliffs[0].point
    assert at_6.per_sample == 3.0
    assert at_6.divided_per_sample == 1.0
    assert swept.cliffs[0].before.mini_batch == 5


@pytest.mark.parametrize(
    ("repeated", "cliffs"), [([3.0], [(6, False)]), ([1.0], []), ([1.0, 3.0], [(6, True)])]
)
def test_only_a_cliff_that_repeated_runs_show_is_one(
    repeated: list[float], cliffs: list[tuple[int, bool]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def compare(
        engine: FakeEngine, divisions: list[FakeDivision], *_: object, rounds: int, **__: object
    ) -> Any:
        ((size, _),) = divisions[0].parts
        factors = repeated if size == 6 else [1.0]
        return [[size * factors[turn % len(factors)] for turn in range(rounds)]], False

    monkeypatch.setattr(FakeEngine, "compare", compare)
    with Cache.in_memory(Path("none")) as cache:
        swept, _ = run(cache, FakeEngine({"A": FakeAlgorithm(three_times_slower_from_6_on)}), (5, 6))
    assert [(cliff.point.mini_batch, cliff.is_undecided) for cliff in swept.cliffs] == cliffs


def test_the_workspace_limit_can_be_the_cliff() -> None:
    hungry = FakeAlgorithm(lambda n: float(n), lambda n: n * MiB)
    with Cache.in_memory(Path("none")) as cache:
        swept, _ = run(cache, FakeEngine({"A": hungry}), (3, 4, 5), 4 * MiB)
    assert [cliff.point.mini_batch for cliff in swept.cliffs] == [5]
    divided = swept.points[-1].divided
    assert divided is not None
    assert (divided.mini_batch, divided.workspace <= 4 * MiB) == (5, True)


def test_without_sizes_those_of_the_policy_are_swept() -> None:
    with Cache.in_memory(Path("none")) as cache:
        swept, _ = run(cache, FakeEngine(), None)
    assert [point.mini_batch for point in swept.points] == [1, 2, 4, 8]


def test_a_sweep_is_measured_once_and_shares_its_measurements_with_the_rest() -> None:
    engine = FakeEngine({"A": FakeAlgorithm(three_times_slower_from_6_on)})
    with Cache.in_memory(Path("none")) as cache:
        _, first = run(cache, engine, (5, 6))
        _, second = run(cache, engine, (4, 6))
        sizes = [m.micro_batch for m in cache.measurements(cache.machines()[0], KERNEL)]
    # Sizes 5 and 6, and their parts of 1, 2 and 4.
    assert (first, second) == (5, 0)
    assert sizes == [1, 2, 4, 5, 6]


def test_a_sentence_says_how_high_the_cliff_is_and_what_division_makes_of_it() -> None:
    before, at = points(1.0, 2.5)
    parts = (MicroConfiguration(1, "A", 1.0, 0),) * 2
    divided = Cliff(before, SweepPoint(2, at.undivided, Configuration(parts)))
    jump = "From 1 to 2 the time of a sample jumps 2.50×, from 1.00 to 2.50 ms"
    assert cliff_sentence(divided, None) == f"{jump}; divided into 2×1 A it is 1.00 ms."
    undivided = Cliff(before, SweepPoint(2, at.undivided, at.undivided))
    assert cliff_sentence(undivided, None) == f"{jump}; division does not help."


def test_a_sentence_names_the_limit_that_nothing_fits() -> None:
    (before,) = points(1.0)
    cliff = Cliff(before, SweepPoint(2, None, Configuration((MicroConfiguration(1, "A", 0.25, 0),) * 2)))
    assert cliff_sentence(cliff, 4 * MiB) == (
        "At 2 nothing undivided fits 4 MiB of workspace; divided into 2×1 A it is 0.25 ms."
    )
