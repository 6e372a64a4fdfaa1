"""A placement is the best of all, and every placement can run."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_cases import examples

from mucudnn.solver import Infeasible
from mucudnn.solver.devices.placement import place, place_chains
from mucudnn.solver.devices.placement_graph import (
    Edges,
    Operation,
    find_chains,
    find_cuts,
    simulate_placement,
    sort_operations,
)


def random_graph(rng: random.Random, count: int) -> tuple[list[Operation], dict[tuple[int, int], float]]:
    operations = [
        Operation(rng.choice([0.0, 1.0, rng.uniform(0, 5)]), rng.randrange(10)) for _ in range(count)
    ]
    edges = {
        (i, j): rng.choice([0.0, rng.uniform(0, 4)])
        for i, j in itertools.combinations(range(count), 2)
        if rng.random() < 0.4
    }
    return operations, edges


def best_of_all(operations: Sequence[Operation], edges: Edges, devices: int, memory: int | None) -> float:
    """Try every assignment of devices and every order that the dependencies allow."""
    count = len(operations)
    orders = [
        order
        for order in itertools.permutations(range(count))
        if all(order.index(i) < order.index(j) for i, j in edges)
    ]
    best = math.inf
    for where in itertools.product(range(devices), repeat=count):
        if count and where[0]:
            continue  # the devices are equal, so their names do not matter
        if memory is not None and any(
            sum(o.memory for o, d in zip(operations, where, strict=True) if d == device) > memory
            for device in range(devices)
        ):
            continue
        for order in orders:
            starts = simulate_placement(operations, edges, where, order)
            best = min(best, max((s + o.time_ms for s, o in zip(starts, operations, strict=True)), default=0))
    return best


def check_runs(operations: Sequence[Operation], edges: Edges, placement: object, memory: int | None) -> None:
    """Check that a placement keeps the dependencies and runs one operation at a time on a device."""
    starts, devices = placement.starts_ms, placement.devices  # type: ignore[attr-defined]
    ends = [s + o.time_ms for s, o in zip(starts, operations, strict=True)]
    for (i, j), ms in edges.items():
        assert starts[j] >= ends[i] + (ms if devices[i] != devices[j] else 0) - 1e-9
    for i, j in itertools.combinations(range(len(operations)), 2):
        if devices[i] == devices[j]:
            assert starts[j] >= ends[i] - 1e-9 or starts[i] >= ends[j] - 1e-9
    if memory is not None:
        for device in set(devices):
            assert sum(o.memory for o, d in zip(operations, devices, strict=True) if d == device) <= memory


@pytest.mark.parametrize("seed", range(40))
def test_a_placement_is_as_good_as_the_best_of_all(seed: int) -> None:
    rng = random.Random(seed)
    operations, edges = random_graph(rng, rng.randint(1, 5))
    devices = rng.choice([1, 2, 3])
    memory = rng.choice([None, None, 12, 20])
    best = best_of_all(operations, edges, devices, memory)
    if math.isinf(best):
        with pytest.raises(Infeasible):
            place(operations, edges, devices, memory)
        return
    placement = place(operations, edges, devices, memory)
    check_runs(operations, edges, placement, memory)
    assert placement.time_ms == pytest.approx(best, rel=1e-6, abs=1e-9)
    assert placement.is_proven


def test_a_block_that_repeats_is_solved_once() -> None:
    operations, edges = [Operation(1.0)], {}
    for _ in range(6):
        gate = len(operations) - 1
        branches = range(gate + 1, gate + 5)
        operations += [Operation(2.0), Operation(3.0), Operation(2.5), Operation(1.0), Operation(0.5)]
        edges |= {(gate, b): 0.1 for b in branches} | {(b, gate + 5): 0.1 for b in branches}
    placement = place(operations, edges, 2)
    assert placement.programs == 1
    assert placement.is_proven
    check_runs(operations, edges, placement, None)


@pytest.mark.parametrize("seed", range(20))
def test_chains_that_are_merged_keep_the_dependencies(seed: int) -> None:
    rng = random.Random(seed)
    operations, edges = random_graph(rng, rng.randint(1, 8))
    memory = rng.choice([None, sum(o.memory for o in operations)])
    placement = place_chains(operations, edges, 2, memory)
    check_runs(operations, edges, placement, memory)
    assert placement.time_ms >= place(operations, edges, 2, memory).bound_ms - 1e-6


def test_a_chain_ends_where_another_operation_begins_or_ends() -> None:
    edges = dict.fromkeys([(0, 1), (1, 2), (2, 3), (2, 4), (3, 5), (4, 5), (5, 6)], 1.0)
    assert sorted(find_chains(7, edges)) == [[0, 1, 2], [3], [4], [5, 6]]


@settings(max_examples=examples(30))
@given(st.integers(0, 10**6), st.integers(1, 12))
def test_cuts_are_the_operations_that_all_others_depend_on_or_lead_to(seed: int, count: int) -> None:
    operations, edges = random_graph(random.Random(seed), count)
    order = sort_operations(len(operations), edges)
    reach = {i: {i} for i in order}
    for i, j in sorted(edges, key=lambda edge: order.index(edge[1])):
        reach[j] |= reach[i]
    expected = [i for i in order if all(i in reach[j] or j in reach[i] for j in order)]
    assert find_cuts(order, edges) == expected


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ({(0, 1): 1.0, (1, 0): 1.0}, "the graph has a cycle"),
        ({(0, 0): 1.0}, "the graph has a cycle"),
        ({(0, 7): 1.0}, "names operation 7; there are 2"),
        ({(0, 1): -1.0}, "takes -1.0 ms"),
        ({(0, 1): math.nan}, "takes nan ms"),
    ],
)
def test_a_wrong_graph_is_refused(edges: Edges, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        place([Operation(1.0)] * 2, edges, 2)


def test_wrong_figures_are_refused() -> None:
    with pytest.raises(ValueError, match="devices is 0"):
        place([Operation(1.0)], {}, 0)
    with pytest.raises(ValueError, match=r"time_ms of an operation is -1\.0"):
        Operation(-1.0)
    with pytest.raises(ValueError, match="memory of an operation is -1"):
        Operation(1.0, -1)
