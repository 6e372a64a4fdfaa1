"""The simulated allocator of PyTorch splits, joins and returns memory by the rules that PyTorch documents.

tests/gpu/memory/test_memory_allocator.py compares it with PyTorch's own.
"""

import pytest

from mucudnn.plans.memory.allocations import find_lives, list_events
from mucudnn.plans.memory.allocator import FREE, Event, count_reserved, find_least
from mucudnn.plans.memory.fit import OPTIMIZERS, name_optimizer
from mucudnn.problems.bundled import bundled_network

MIB = 2**20


@pytest.mark.parametrize(
    ("sizes", "reserved"),
    [
        ([0], 0),
        ([1], 2 * MIB),
        ([MIB, MIB], 2 * MIB),  # small tensors share a segment
        ([MIB, MIB, 1], 4 * MIB),
        ([MIB + 1], 20 * MIB),
        ([5 * MIB] * 4, 20 * MIB),  # so do those below 10 MiB
        ([6 * MIB] * 4, 40 * MIB),
        ([10 * MIB], 10 * MIB),  # a large tensor has its own
        ([11 * MIB], 12 * MIB),
        ([15 * MIB, MIB], 18 * MIB),  # a small tensor takes no part of a large segment
    ],
)
def test_segments_have_the_documented_sizes(sizes: list[int], reserved: int) -> None:
    assert count_reserved(enumerate(sizes)) == reserved


def test_the_smallest_free_block_that_fits_is_used() -> None:
    events: list[Event] = [("a", 40 * MIB), ("b", 20 * MIB), ("a", FREE), ("b", FREE)]
    assert count_reserved([*events, ("c", 20 * MIB), ("d", 40 * MIB)]) == 60 * MIB
    assert count_reserved([*events, ("c", 21 * MIB), ("d", 40 * MIB)]) == 100 * MIB


@pytest.mark.parametrize(("rest", "reserved"), [(MIB, 60 * MIB), (MIB + 512, 40 * MIB)])
def test_a_rest_of_at_most_one_mib_stays_with_its_tensor(rest: int, reserved: int) -> None:
    events: list[Event] = [("a", 40 * MIB), ("a", FREE), ("b", 40 * MIB - rest), ("c", MIB + 512)]
    assert count_reserved(events) == reserved


def test_neighbours_are_joined_when_they_are_free() -> None:
    parts: list[Event] = [("whole", 40 * MIB), ("whole", FREE), *((n, 10 * MIB) for n in range(4))]
    for order in ((0, 1), (1, 0), (1, 2), (3, 2)):
        freed: list[Event] = [(n, FREE) for n in order]
        assert count_reserved([*parts, *freed, ("large", 20 * MIB)]) == 40 * MIB
    assert count_reserved([*parts, (0, FREE), (2, FREE), ("large", 20 * MIB)]) == 60 * MIB


def test_free_segments_are_returned_to_stay_within_a_limit() -> None:
    events: list[Event] = [("a", 40 * MIB), ("a", FREE), ("b", 60 * MIB)]
    assert count_reserved(events) == 100 * MIB
    assert count_reserved(events, 99 * MIB) == find_least(events) == 60 * MIB


def test_a_gap_beside_a_tensor_is_not_returned() -> None:
    events: list[Event] = [("a", 60 * MIB), ("a", FREE), ("b", 20 * MIB), ("c", 60 * MIB)]
    assert find_least(events) == count_reserved(events) == 120 * MIB
    assert count_reserved(events, 119 * MIB) == 120 * MIB  # PyTorch runs out of memory


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("accumulates", [False, True])
def test_a_training_leaves_parameters_buffers_input_and_state(optimizer: str, accumulates: bool) -> None:
    network = bundled_network("resnet18", 2).with_backward()
    update = name_optimizer(optimizer, [t for t in network.tensors if t.kind == "gradient"])
    scratch = [512] * len(network.steps)
    live: dict[object, int] = {}
    for key, size in list_events(network, find_lives(network, {}), scratch, update, accumulates=accumulates):
        if size == FREE:
            live.pop(key, None)
        else:
            assert key not in live
            live[key] = -(-size // 512) * 512
    kept = (t.bytes for t in network.tensors if t.kind in ("parameter", "buffer", "input"))
    assert sum(live.values()) == sum(-(-size // 512) * 512 for size in kept) + update.state
