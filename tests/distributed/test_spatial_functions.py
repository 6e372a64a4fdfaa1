"""Functions and layers that models call, on ranks that share a sample, equal the undivided ones in fp64."""

from __future__ import annotations

import os

import needs_torch  # noqa: F401
import pytest
import spatial_functions
import worlds


@pytest.mark.parametrize("world", [3, 4, *([2] if "TEST_CASES" in os.environ else [])])
def test_functions_of_models_equal_those_of_the_undivided_tensor(world: int) -> None:
    assert worlds.run(world, spatial_functions.function_errors) == [{}] * world


def test_the_gradient_of_a_normalized_sample_is_right_whatever_its_strides() -> None:
    assert max(worlds.run(2, spatial_functions.error_of_a_normalized_sample)) < 1e-12


def test_a_gathering_and_a_large_whole_product_warn_once_and_heads_do_not() -> None:
    for gathered, product in worlds.run(2, spatial_functions.warned):
        assert "inner (Sorting) gathers 2,688 bytes on each rank for" in gathered
        assert "wide (Call) gathers 19,200 bytes on each rank for" in product
