"""Each solver of workspace division finds the optimum that trying every choice finds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
from hypothesis import assume, example, given
from hypothesis import strategies as st

from mucudnn.solver.workspace import exact, ilp
from mucudnn.solver.workspace.choice import Options
from mucudnn.solver.workspace.relaxation import Segments

TIE = 1e-12
SECONDS = 60.0

Problem = tuple[list[Options], int]


@st.composite
def option_lists(draw: st.DrawFn) -> Options:
    count = draw(st.integers(1, 5))
    numbers = draw(st.sampled_from([st.integers(1, 30), st.integers(1, 10**12)]))
    workspaces = draw(st.lists(numbers, min_size=count - 1, max_size=count - 1, unique=True))
    times = draw(st.lists(st.floats(0.01, 100.0), min_size=count, max_size=count, unique=True))
    return Options(np.array([0, *sorted(workspaces)], dtype=np.int64), np.array(sorted(times, reverse=True)))


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Draw capacities at a sum of some choice or one byte under it, at which not every option fits."""
    options = draw(st.lists(option_lists(), min_size=1, max_size=5))
    choice = [draw(st.integers(0, len(kernel.time) - 1)) for kernel in options]
    capacity = workspace_of(options, choice) - draw(st.integers(0, 1))
    assume(0 <= capacity < sum(int(kernel.workspace[-1]) for kernel in options))
    return options, capacity


def workspace_of(options: Sequence[Options], choice: Sequence[int]) -> int:
    return sum(int(kernel.workspace[i]) for kernel, i in zip(options, choice, strict=True))


def time_of(options: Sequence[Options], choice: Sequence[int]) -> float:
    return math.fsum(kernel.time[i] for kernel, i in zip(options, choice, strict=True))


def least_time(options: Sequence[Options], capacity: int) -> float:
    choices = itertools.product(*(range(len(kernel.time)) for kernel in options))
    return min(time_of(options, c) for c in choices if workspace_of(options, c) <= capacity)


@given(problems())
def test_dynamic_programming_finds_the_optimum(problem: Problem) -> None:
    options, capacity = problem
    answer = exact.solve(options, capacity, 0.0, SECONDS)
    best = least_time(options, capacity)
    assert answer.choice is not None
    assert workspace_of(options, answer.choice) <= capacity
    assert time_of(options, answer.choice) <= best * (1 + 2 * TIE)
    assert answer.bound <= best * (1 + TIE)


@given(problems(), st.floats(0.0, 0.5))
def test_dynamic_programming_keeps_the_gap_asked_for(problem: Problem, gap: float) -> None:
    options, capacity = problem
    answer = exact.solve(options, capacity, gap, SECONDS)
    best = least_time(options, capacity)
    assert answer.choice is not None
    assert workspace_of(options, answer.choice) <= capacity
    assert time_of(options, answer.choice) * (1 - gap) <= best * (1 + 2 * TIE)


# Kernels that share FULL bytes of workspace. With its presolve, HiGHS misses their best configurations.
FULL = 3_307_094_304
UNEQUAL_WORKSPACES = [
    Options(np.array([0, 5]), np.array([5.0, 1.0])),
    Options(np.array([0, 1, FULL - 5]), np.array([6.0, 5.0, 1.0])),
    Options(np.array([0, 1, 2, 3]), np.array([4.0, 3.0, 2.0, 1.0])),
]


@given(problems())
@example((UNEQUAL_WORKSPACES, FULL))
def test_the_linear_program_finds_the_optimum_within_its_tolerance(problem: Problem) -> None:
    options, capacity = problem
    options = [kernel.take(np.flatnonzero(kernel.workspace <= capacity)) for kernel in options]
    answer = ilp.solve(options, capacity, 0.0, SECONDS)
    best = least_time(options, capacity)
    assert answer.choice is not None
    assert workspace_of(options, answer.choice) <= capacity * (1 + 1e-6) + 1
    assert time_of(options, answer.choice) <= best * (1 + 1e-9)


@given(problems())
def test_the_relaxation_bounds_the_optimum_from_both_sides(problem: Problem) -> None:
    options, capacity = problem
    best = least_time(options, capacity)
    segments = Segments(options)
    rest = segments.after(0)
    assert rest.bound(np.array([capacity]))[0] <= best * (1 + TIE)
    for choice in (segments.fill(capacity), rest.choice(capacity)):
        assert workspace_of(options, choice) <= capacity
        assert time_of(options, choice) >= best
