"""The cut of a chain of operations equals brute force."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mucudnn.solver.devices.cutting import cut

LENGTHS = st.integers(1, 8)


@st.composite
def chains(draw: st.DrawFn) -> tuple[list[float], list[float], int, float]:
    length = draw(LENGTHS)
    times = draw(st.lists(st.integers(0, 20), min_size=length, max_size=length))
    sizes = st.one_of(st.integers(0, 9), st.just(math.inf))
    sent = draw(st.lists(sizes, min_size=length - 1, max_size=length - 1))
    return times, sent, draw(st.integers(1, 4)), draw(st.sampled_from([0.0, 0.05, 0.5]))


@given(chains())
def test_the_slowest_stage_and_the_bytes_are_those_of_brute_force(
    chain: tuple[list[float], list[float], int, float],
) -> None:
    times, sent, stages, tolerance = chain

    def slowest(starts: tuple[int, ...]) -> float:
        return max(sum(times[a:b]) for a, b in itertools.pairwise((0, *starts, len(times))))

    def total(starts: tuple[int, ...]) -> float:
        return sum(sent[start - 1] for start in starts)

    possible = [
        starts
        for starts in itertools.combinations(range(1, len(times)), stages - 1)
        if total(starts) < math.inf
    ]
    if not possible:
        with pytest.raises(ValueError, match="stages at most"):
            cut(times, sent, stages, tolerance)
        return
    cuts = tuple(cut(times, sent, stages, tolerance))
    limit = min(map(slowest, possible)) * (1 + tolerance)
    assert cuts in possible
    assert slowest(cuts) <= limit * (1 + 1e-9)
    assert total(cuts) == min(total(starts) for starts in possible if slowest(starts) <= limit * (1 + 1e-9))
