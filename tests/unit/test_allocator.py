"""The simulated allocator of PyTorch splits, joins and returns memory by the rules that PyTorch documents.

tests/gpu/memory/test_memory_allocator.py compares it with PyTorch's own.
"""

import pytest

from mucudnn.plans.memory.allocator import FREE, Event, count_reserved, find_least

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
