"""Workspace division is as good as the best of all choices, and fits the total to the byte."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mucudnn.solver import Configuration, Infeasible, MicroConfiguration, divide_workspace, solve_division
from mucudnn.solver.workspace import division
from mucudnn.solver.workspace.choice import Answer, Options

Kernels = dict[str, list[Configuration]]
Order = tuple[str, ...]

TIE = 1e-12
ORDERS: tuple[Order, ...] = (("exact", "highs"), ("highs", "exact"), ("exact",))


def trying(order: Order) -> AbstractContextManager[object]:
    """Let these solvers try a division one after another."""
    return mock.patch.object(division, "SOLVERS", {name: division.SOLVERS[name] for name in order})


def configuration(time_ms: float, workspace: int, parts: int = 1) -> Configuration:
    return Configuration((MicroConfiguration(1, "A", time_ms / parts, workspace),) * parts)


workspaces = st.one_of(st.integers(0, 20), st.integers(0, 10**12))
configurations = st.builds(configuration, st.floats(0.01, 100.0), workspaces)


@st.composite
def networks(draw: st.DrawFn) -> tuple[Kernels, dict[str, int]]:
    names = "abcde"[: draw(st.integers(1, 5))]
    kernels = {name: draw(st.lists(configurations, min_size=1, max_size=5)) for name in names}
    return kernels, draw(st.dictionaries(st.sampled_from(names), st.integers(1, 3)))


def workspace_of(choice: Mapping[str, Configuration], counts: Mapping[str, int]) -> int:
    return sum(counts.get(name, 1) * c.workspace for name, c in choice.items())


def time_of(choice: Mapping[str, Configuration], counts: Mapping[str, int]) -> float:
    return math.fsum(counts.get(name, 1) * c.time_ms for name, c in choice.items())


def all_choices(kernels: Kernels) -> list[dict[str, Configuration]]:
    return [dict(zip(kernels, choice, strict=True)) for choice in itertools.product(*kernels.values())]


@st.composite
def networks_with_totals(draw: st.DrawFn) -> tuple[Kernels, dict[str, int], int]:
    """Draw totals exactly at a feasible sum, one byte under or over it, and anywhere."""
    kernels, counts = draw(networks())
    choice = {name: draw(st.sampled_from(options)) for name, options in kernels.items()}
    total = workspace_of(choice, counts) + draw(st.sampled_from([-1, 0, 0, 1, 10**6]))
    return kernels, counts, total


@given(networks_with_totals(), st.sampled_from(ORDERS), st.booleans())
def test_a_division_is_as_good_as_the_best_of_all_choices(
    case: tuple[Kernels, dict[str, int], int], order: Order, exact: bool
) -> None:
    kernels, counts, total = case
    fitting = [c for c in all_choices(kernels) if workspace_of(c, counts) <= total]
    if not fitting:
        with pytest.raises(Infeasible) as raised:
            divide_workspace(kernels, total, counts=counts, exact=exact)
        assert raised.value.limit == total
        assert raised.value.need == min(workspace_of(c, counts) for c in all_choices(kernels))
        return
    best = min(time_of(c, counts) for c in fitting)
    with trying(order):
        choice = divide_workspace(kernels, total, counts=counts, exact=exact)
    assert list(choice) == list(kernels)
    assert all(choice[name] in kernels[name] for name in kernels)
    assert workspace_of(choice, counts) <= total
    # HiGHS has tolerances of its own, so `exact` only sets the gap that is asked of it to zero.
    gap = (1e-9 if order[0] == "highs" else 2 * TIE) if exact else division.GAP * 1.01
    assert time_of(choice, counts) <= best * (1 + gap)


@given(networks_with_totals(), st.sampled_from(ORDERS))
def test_identical_kernels_apart_are_as_good_as_so_many_kernels_with_names_of_their_own(
    case: tuple[Kernels, dict[str, int], int], order: Order
) -> None:
    kernels, counts, total = case
    singles = {f"{name}{i}": kernels[name] for name in kernels for i in range(counts.get(name, 1))}
    try:
        best = time_of(divide_workspace(singles, total, exact=True), {})
    except Infeasible:
        with pytest.raises(Infeasible):
            solve_division(kernels, total, counts=counts, apart=True)
        return
    with trying(order):
        solution = solve_division(kernels, total, counts=counts, apart=True)
    assert {name: sum(n for n, _ in shares) for name, shares in solution.shares.items()} == {
        name: counts.get(name, 1) for name in kernels
    }
    taken = [(n, c) for shares in solution.shares.values() for n, c in shares]
    assert sum(n * c.workspace for n, c in taken) <= total
    assert math.fsum(n * c.time_ms for n, c in taken) <= best * (1 + division.GAP * 1.01)


def test_very_many_identical_kernels_are_divided_in_groups() -> None:
    slow, fast = configuration(2.0, 0), configuration(1.0, 10)
    solution = solve_division({"a": [slow, fast]}, 5 * 10**6, counts={"a": 10**6}, apart=True)
    (fast_ones, _), (slow_ones, _) = solution.shares["a"]
    assert fast_ones + slow_ones == 10**6
    assert 450_000 < fast_ones <= 500_000


@given(networks_with_totals(), st.randoms(use_true_random=False), st.booleans())
def test_the_order_of_kernels_and_configurations_does_not_matter(
    case: tuple[Kernels, dict[str, int], int], shuffler: random.Random, exact: bool
) -> None:
    kernels, counts, total = case
    try:
        expected = divide_workspace(kernels, total, counts=counts, exact=exact)
    except Infeasible:
        return
    names = list(kernels)
    shuffler.shuffle(names)
    shuffled = {name: shuffler.sample(kernels[name], len(kernels[name])) for name in names}
    assert divide_workspace(shuffled, total, counts=counts, exact=exact) == expected


def test_no_kernels_need_nothing() -> None:
    assert divide_workspace({}, 0) == {}


def test_the_error_names_the_total_and_the_least_that_would_do() -> None:
    kernels = {name: [configuration(1.0, 10)] for name in "ab"}
    with pytest.raises(Infeasible, match=r"29 bytes .* 30 bytes") as raised:
        divide_workspace(kernels, 29, counts={"b": 2})
    assert (raised.value.limit, raised.value.need) == (29, 30)


def test_a_kernel_without_configurations_is_infeasible_at_any_total() -> None:
    with pytest.raises(Infeasible, match="'b' has no configuration") as raised:
        divide_workspace({"a": [configuration(1.0, 0)], "b": []}, 10**15)
    assert raised.value.need is None


@pytest.mark.parametrize(
    ("counts", "message"), [({"a": 0}, "count of 'a' is 0"), ({"z": 2}, "'z', which is none of the kernels")]
)
def test_wrong_counts_are_refused(counts: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        divide_workspace({"a": [configuration(1.0, 0)]}, 1, counts=counts)


def finds_nothing(options: Sequence[Options], capacity: int, gap: float, time_limit: float) -> Answer:
    return Answer(None, -math.inf)


def exceeds_the_capacity(options: Sequence[Options], capacity: int, gap: float, time_limit: float) -> Answer:
    return Answer([len(kernel.time) - 1 for kernel in options], 0.0)


@pytest.mark.parametrize("highs", [finds_nothing, exceeds_the_capacity])
def test_without_an_answer_of_highs_that_fits_dynamic_programming_decides(
    highs: Callable[..., Answer], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(division.SOLVERS, "highs", highs)
    kernels = network(kernels=20, configurations=10)
    total = sum(options[3].workspace for options in kernels.values())
    with trying(("highs", "exact")):
        solution = solve_division(kernels, total)
    assert (solution.solver, solution.reached) == ("exact", True)
    assert workspace_of(solution.choice, {}) <= total


@pytest.mark.parametrize("order", ORDERS)
def test_a_division_stopped_early_fits_and_tells_its_gap(order: Order) -> None:
    kernels = network(kernels=50, configurations=50)
    total = sum(options[10].workspace for options in kernels.values())
    with trying(order):
        stopped = solve_division(kernels, total, exact=True, time_limit=0.0)
    optimum = time_of(divide_workspace(kernels, total, exact=True), {})
    assert workspace_of(stopped.choice, {}) <= total
    assert not stopped.reached
    assert 0 < stopped.gap < 0.1
    assert optimum * (1 + 1e-9) >= time_of(stopped.choice, {}) * (1 - stopped.gap)


@pytest.mark.parametrize("order", ORDERS)
def test_a_large_network_is_divided_within_the_gap(order: Order) -> None:
    kernels = network(kernels=150, configurations=200)
    total = sum(options[20].workspace for options in kernels.values())
    with trying(order):
        solution = solve_division(kernels, total)
    assert solution.reached
    assert solution.gap <= division.GAP * 1.01
    assert workspace_of(solution.choice, {}) <= total


def network(*, kernels: int, configurations: int) -> Kernels:
    rng = random.Random(0)
    made = {}
    for k in range(kernels):
        sizes = sorted(rng.randrange(2 ** rng.randint(20, 30)) for _ in range(configurations))
        durations = sorted((rng.uniform(1, 3) for _ in range(configurations)), reverse=True)
        made[f"kernel {k}"] = [configuration(ms, w) for ms, w in zip(durations, sizes, strict=True)]
    return made
