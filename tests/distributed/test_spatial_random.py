"""Random numbers on ranks with different seeds: whole tensors are the same on all ranks of a sample."""

from __future__ import annotations

from typing import Any

import needs_torch  # noqa: F401
import pytest
import spatial_cases
import spatial_random
import worlds


@pytest.fixture(scope="module")
def on_three() -> list[dict[str, Any]]:
    """Return the values of all cases on three ranks, of which the last has fewer rows."""
    c = spatial_random
    cases = [c.random_functions, c.random_gradients, c.equal_seeds, c.early, c.repeated]
    return worlds.run(3, spatial_cases.many, cases)


def test_whole_random_tensors_are_those_of_the_undivided_model(on_three: list[dict[str, Any]]) -> None:
    assert [results["random_functions"] for results in on_three] == [[], [], []]


def test_ranks_of_a_sample_agree_on_the_loss_and_on_whole_gradients_bit_for_bit(
    on_three: list[dict[str, Any]],
) -> None:
    for results in on_three:
        assert all(results["random_gradients"].values()), results


def test_ranks_with_other_samples_draw_other_numbers() -> None:
    for first, second, third, fourth in worlds.run(4, spatial_random.random_groups):
        assert first == second
        assert third == fourth
        assert first != third


def test_equal_seeds_give_the_numbers_that_they_give_without_division(on_three: list[dict[str, Any]]) -> None:
    assert [results["equal_seeds"] for results in on_three] == [True, True, True]


def test_whole_tensors_that_were_drawn_from_different_seeds_are_refused(
    on_three: list[dict[str, Any]],
) -> None:
    for results in on_three:
        for name, errors in results["early"].items():
            advice = "after divide" if "noise" in name else "DistributedDataParallel"
            assert [advice in text for text in errors] == [True, True], name


def test_ranks_compare_a_whole_tensor_once_and_allow_for_rounding(on_three: list[dict[str, Any]]) -> None:
    assert [results["repeated"] for results in on_three] == [(2, 0), (2, 0), (2, 0)]
