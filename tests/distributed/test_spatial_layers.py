"""Random layers give the same results and gradients on one to four ranks as undivided, in fp64."""

from __future__ import annotations

import os

import needs_torch  # noqa: F401
import pytest
import spatial_layers
import worlds

LAYERS = int(os.environ.get("TEST_CASES", "12"))


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_random_layers_equal_the_undivided_ones(world: int) -> None:
    seeds = list(range(LAYERS))
    for results in worlds.run(world, spatial_layers.random_layers, seeds):
        wrong = [result for result in results if not (result[2] <= 1e-13 and result[3] <= 1e-12)]
        assert not wrong, wrong[:3]


def test_a_convolution_adds_equal_zeros_to_undivided_axes_itself() -> None:
    assert worlds.run(2, spatial_layers.copies_of_padding) == [(0, 1)] * 2
