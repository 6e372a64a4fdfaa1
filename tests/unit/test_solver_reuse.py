"""Workspace reuse and desirable sets agree with a search through all configurations."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from mucudnn.solver import Configuration, Infeasible, MicroConfiguration, desirable_set, reuse_workspace

TIE = 1e-12

# Multiples of 0.1 make sums that are equal but for rounding, such as 0.1 + 0.2 and 0.3.
times = st.one_of(
    st.integers(0, 12).map(lambda tenths: tenths * 0.1), st.floats(0.01, 100.0, allow_subnormal=False)
)
workspaces = st.one_of(st.integers(0, 6), st.integers(0, 2**40))


@st.composite
def measurements(draw: st.DrawFn) -> tuple[list[MicroConfiguration], int]:
    mini_batch = draw(st.integers(1, 7))
    keys = draw(
        st.lists(st.tuples(st.integers(1, mini_batch + 1), st.sampled_from("ABC")), unique=True, max_size=10)
    )
    return [MicroConfiguration(b, a, draw(times), draw(workspaces)) for b, a in keys], mini_batch


def all_configurations(
    measured: list[MicroConfiguration], mini_batch: int
) -> Iterator[tuple[MicroConfiguration, ...]]:
    """Yield every multiset of micro-configurations that adds to the mini-batch, sizes descending."""
    if mini_batch == 0:
        yield ()
    usable = sorted(measured, key=lambda m: -m.micro_batch)
    for i, part in enumerate(usable):
        if part.micro_batch <= mini_batch:
            for rest in all_configurations(usable[i:], mini_batch - part.micro_batch):
                yield (part, *rest)


def brute_force(measured: list[MicroConfiguration], mini_batch: int) -> list[tuple[int, float, list[int]]]:
    """Return workspace, time and sizes of each member of the desirable set, computed from its definition."""
    candidates = [Configuration(parts) for parts in all_configurations(measured, mini_batch)]
    expected: list[tuple[int, float, list[int]]] = []
    for workspace in sorted({c.workspace for c in candidates}):
        fitting = [c for c in candidates if c.workspace <= workspace]
        fastest = min(c.time_ms for c in fitting)
        if expected and not fastest < expected[-1][1] * (1 - TIE):
            continue
        equal = [c for c in fitting if c.time_ms <= fastest * (1 + TIE)]
        sizes = min((len(c.parts), [-p.micro_batch for p in c.parts]) for c in equal)[1]
        expected.append((workspace, fastest, [-size for size in sizes]))
    return expected


def sizes(*micro_batches: int) -> list[MicroConfiguration]:
    return [MicroConfiguration(size, "A", size * 0.1, 0) for size in micro_batches]


@given(measurements())
@example((sizes(1, 3, 4), 6))  # fewer parts win over a larger first one
@example((sizes(1, 2, 3), 4))  # larger parts come first among as many
@example(([MicroConfiguration(1, "A", 1.0, 100), MicroConfiguration(4, "A", 5.0, 10)], 4))
@example(([MicroConfiguration(2, "A", 0.6, 8), MicroConfiguration(1, "A", 0.3, 4)], 2))
def test_a_desirable_set_is_what_all_configurations_give(case: tuple[list[MicroConfiguration], int]) -> None:
    measured, mini_batch = case
    configurations = desirable_set(measured, mini_batch)
    expected = brute_force(measured, mini_batch)
    assert [c.workspace for c in configurations] == [workspace for workspace, _, _ in expected]
    assert [c.time_ms for c in configurations] == pytest.approx(
        [ms for _, ms, _ in expected], rel=2 * TIE, abs=0
    )
    assert [[p.micro_batch for p in c.parts] for c in configurations] == [sizes for _, _, sizes in expected]
    assert all(c.mini_batch == mini_batch and set(c.parts) <= set(measured) for c in configurations)


@given(measurements(), st.randoms(use_true_random=False))
def test_the_order_of_measurements_does_not_matter(
    case: tuple[list[MicroConfiguration], int], shuffler: random.Random
) -> None:
    measured, mini_batch = case
    shuffled = measured.copy()
    shuffler.shuffle(shuffled)
    assert desirable_set(shuffled, mini_batch) == desirable_set(measured, mini_batch)


@given(measurements(), workspaces)
def test_a_limit_keeps_the_start_of_the_desirable_set(
    case: tuple[list[MicroConfiguration], int], limit: int
) -> None:
    measured, mini_batch = case
    without_limit = desirable_set(measured, mini_batch)
    assert desirable_set(measured, mini_batch, limit=limit) == [
        c for c in without_limit if c.workspace <= limit
    ]


@given(measurements(), st.one_of(st.none(), workspaces))
def test_workspace_reuse_takes_the_fastest_within_the_limit(
    case: tuple[list[MicroConfiguration], int], limit: int | None
) -> None:
    measured, mini_batch = case
    desirable = desirable_set(measured, mini_batch)
    fitting = [c for c in desirable if limit is None or c.workspace <= limit]
    if fitting:
        assert reuse_workspace(measured, mini_batch, limit) == fitting[-1]
    else:
        with pytest.raises(Infeasible) as raised:
            reuse_workspace(measured, mini_batch, limit)
        assert raised.value.limit == limit
        assert raised.value.need == (desirable[0].workspace if desirable else None)


@pytest.mark.parametrize(
    ("micro_batch", "time_ms", "workspace", "message"),
    [
        (0, 1.0, 0, "micro_batch is 0"),
        (-4, 1.0, 0, "micro_batch is -4"),
        (1, -0.5, 0, "is -0.5"),
        (1, math.nan, 0, "is nan"),
        (1, math.inf, 0, "is inf"),
        (1, 1.0, -1, "is -1"),
    ],
)
def test_a_measurement_out_of_range_is_refused_with_its_value(
    micro_batch: int, time_ms: float, workspace: int, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        MicroConfiguration(micro_batch, "A", time_ms, workspace)


def test_an_algorithm_given_twice_at_one_size_is_refused() -> None:
    with pytest.raises(ValueError, match="GEMM is given twice at micro-batch 4"):
        desirable_set([MicroConfiguration(4, "GEMM", ms, 0) for ms in (1.0, 2.0)], 4)


@pytest.mark.parametrize("mini_batch", [0, -1])
def test_a_mini_batch_below_one_is_refused(mini_batch: int) -> None:
    with pytest.raises(ValueError, match=f"mini_batch is {mini_batch}"):
        desirable_set([], mini_batch)


def test_every_size_of_a_large_mini_batch_can_be_measured() -> None:
    rng = random.Random(0)
    measured = [
        MicroConfiguration(size, f"A{a}", size * rng.uniform(0.5, 2) + 0.1, rng.randrange(2**30))
        for size in range(1, 1025)
        for a in range(8)
    ]
    configurations = desirable_set(measured, 1024)
    assert all(
        a.workspace < b.workspace and a.time_ms > b.time_ms for a, b in itertools.pairwise(configurations)
    )
    assert all(c.mini_batch == 1024 for c in configurations)
