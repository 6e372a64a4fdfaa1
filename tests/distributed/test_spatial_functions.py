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


def test_a_transformer_block_stays_divided_along_the_sequence() -> None:
    for error, share, gatherings, text in worlds.run(3, spatial_functions.transformer):
        assert error <= 1e-12
        assert share == 1.0
        assert not gatherings
        assert "2 of 2 convolutions and linear layers ran divided, with 100% of the multiplications" in text


def test_a_gathering_warns_once_with_the_layer_and_its_bytes() -> None:
    for warned in worlds.run(2, spatial_functions.warned):
        [text] = warned
        assert "inner (Sorting) gathers 2,688 bytes on each rank for" in text


def test_functions_that_change_a_divided_tensor_in_place_change_its_parts() -> None:
    assert worlds.run(2, spatial_functions.written_rows) == [0.0, 0.0]
