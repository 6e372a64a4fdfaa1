"""Losses of divided predictions, with whole and with divided labels, equal the undivided ones in fp64."""

from __future__ import annotations

from importlib.util import find_spec

import needs_torch  # noqa: F401
import pytest
import spatial_losses
import worlds
from programs import is_missing

GATHERING = {"monai": {"TensorBase.scatter_"}, "segmentation_models_pytorch": {"TensorBase.__getitem__"}}
"""The functions that gather: MONAI writes divided labels into a whole tensor, and a loss that ignores labels
keeps only some elements, of which no rank knows how many the others keep."""


@pytest.mark.parametrize("package", spatial_losses.LOSSES)
def test_losses_equal_those_of_the_undivided_prediction(package: str) -> None:
    if not find_spec(package):
        is_missing(f"needs {package}")
    for errors, gathered in worlds.run(2, spatial_losses.loss_errors, package):
        assert all(error <= 1e-12 for error in errors.values()), errors
        assert {function for functions in gathered.values() for function in functions} == GATHERING.get(
            package, set()
        )
