"""The search for the largest batch that fits."""

from math import isqrt

import pytest

from mucudnn.listener import Listener
from mucudnn.measuring.modelled_device import find_device
from mucudnn.plans.memory.batches import NetworkFits, largest
from mucudnn.problems.bundled import bundled_network


@pytest.mark.parametrize("fixed", [0, 10**9])
@pytest.mark.parametrize("power", [0.5, 1, 1.5])
@pytest.mark.parametrize("batch", [1, 2, 3, 7, 100, 8401])
def test_the_largest_batch_is_found(batch: int, power: float, fixed: int) -> None:
    def need(batch: int) -> int:
        return fixed + int(10**6 * batch**power)

    assert largest(need, need(batch)) == batch


def test_few_batches_are_tried_if_the_need_grows_evenly() -> None:
    tried = list[int]()

    def need(batch: int) -> int:
        tried.append(batch)
        return 10**9 + 10**6 * batch + 1000 * (batch % 7)

    assert largest(need, need(5000)) == 5000
    assert len(tried) < 15


def test_batches_far_above_the_memory_are_not_tried() -> None:
    def need(batch: int) -> int:
        assert batch < 20 * 5000
        return max(10**9, 10**6 * batch)  # the optimizer's step takes more than small batches

    assert largest(need, need(5000)) == 5000


def test_the_largest_batch_may_lie_above_one_that_does_not_fit() -> None:
    assert largest(lambda batch: batch if batch not in range(101, 106) else 1000, 106) == 106


def test_sizes_that_do_not_grow_evenly_with_the_batch_are_noticed() -> None:
    most = [
        NetworkFits(
            lambda n, power=power: bundled_network("alexnet", n**power).with_backward(),
            find_device("titanx"), None, Listener(),
        ).find_batches(1)[0]
        for power in (1, 2)
    ]  # fmt: skip
    assert most[1] == isqrt(most[0])
