"""The places at which a divided tensor is gathered, against all ways there are."""

from __future__ import annotations

import itertools
import math
import random

import pytest

from mucudnn.solver.devices.gathering import Gathering, gatherings

STAGES = 3


def problem(seed: int) -> tuple[list[list[float]], list[list[int]], list[list[list[float]]]]:
    """Return a random chain, in which a tensor is never divided again and some layers cannot be divided."""
    r = random.Random(seed)
    layers = r.randint(1, 6)
    times = [[float(r.randint(0, 9)) for _ in range(STAGES)] for _ in range(layers)]
    times[-1][0] = r.choice([times[-1][0], math.inf])
    memory = [[r.randint(0, 9) for _ in range(STAGES)] for _ in range(layers)]
    moves = [
        [
            [0.0 if a == b else float(r.randint(0, 5)) if a < b else math.inf for b in range(STAGES)]
            for a in range(STAGES)
        ]
        for _ in range(layers)
    ]
    return times, memory, moves


def cost(
    stages: tuple[int, ...],
    times: list[list[float]],
    memory: list[list[int]],
    moves: list[list[list[float]]],
) -> tuple[float, int]:
    before = (0, *stages[:-1])
    time = sum(times[k][s] + moves[k][b][s] for k, (b, s) in enumerate(zip(before, stages, strict=True)))
    return time, sum(memory[k][s] for k, s in enumerate(stages))


@pytest.mark.parametrize("seed", range(60))
def test_for_every_memory_limit_no_way_is_faster(seed: int) -> None:
    chain = problem(seed)
    front = gatherings(*chain)
    everything = [cost(way, *chain) for way in itertools.product(range(STAGES), repeat=len(chain[0]))]
    for gathering in front:
        assert cost(gathering.stages, *chain) == (gathering.time_ms, gathering.memory)
    for limit in range(60):
        best = min((time for time, size in everything if size <= limit), default=math.inf)
        assert (
            min((gathering.time_ms for gathering in front if gathering.memory <= limit), default=math.inf)
            == best
        )


def test_the_front_is_ordered_and_each_way_needs_less_than_the_faster_ones() -> None:
    for seed in range(60):
        front = gatherings(*problem(seed))
        for faster, slower in itertools.pairwise(front):
            assert faster.time_ms < slower.time_ms
            assert faster.memory > slower.memory


def test_a_chain_that_cannot_run_has_no_way() -> None:
    assert gatherings([[math.inf]], [[1]], [[[0.0]]]) == []
    assert gatherings([[2.0]], [[1]], [[[0.0]]]) == [Gathering((0,), 2.0, 1)]
