"""Models of the survey, drawn from a seed, are right when they are divided over two ranks.

A smaller sample is also split, planned and converted.

TEST_CASES=5 draws that many from each package instead of one. TEST_SEED=7 draws others.
"""

from __future__ import annotations

import os
import random
from importlib.util import find_spec

import needs_torch  # noqa: F401
import pytest
import worlds
from programs import is_missing

from bench.suites.devices.operations import try_operations
from bench.suites.devices.spatial import MODELS, compare_models

SAMPLE = int(os.environ.get("TEST_CASES", "1"))  # from each package
SEED = os.environ.get("TEST_SEED", "1")
# Large models, and one that cannot be divided.
OMITTED = {
    "MONAI VNet",
    "MONAI SwinUNETR",
    "diffusers Mochi",
    "diffusers HunyuanVideo 1.5",
    "MONAI HighResNet",
}


@pytest.fixture(params=["monai", "diffusers", "timm", "segmentation_models_pytorch"])
def names(request: pytest.FixtureRequest) -> list[str]:
    if not find_spec(request.param):
        is_missing(f"needs {request.param}")
    known = [
        name
        for name, model in MODELS.items()
        if model.package.startswith(request.param) and not model.timed and name not in OMITTED
    ]
    random.Random(SEED).shuffle(known)
    return known[:SAMPLE]


def test_models_equal_the_undivided_ones(names: list[str]) -> None:
    for outcomes in worlds.run(2, compare_models, names):
        for name, outcome in outcomes.items():
            assert outcome["divide"] == "right", (name, outcome)
            assert outcome["share"] > 0.8


@pytest.mark.parametrize("names", ["monai", "diffusers"], indirect=True)
def test_split_plan_and_convert_are_right_or_refused(names: list[str]) -> None:
    for name in names:
        [outcomes] = worlds.run(1, try_operations, MODELS[name].make)
        for operation, outcome in outcomes.items():
            assert outcome.startswith(("right", "refused")), (name, operation, outcome)
