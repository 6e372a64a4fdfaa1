"""Models of the survey, drawn from a seed, are right when they are divided over two ranks.

TEST_CASES=5 draws that many from each package instead of one. TEST_SEED=7 draws others.
"""

from __future__ import annotations

import os
import random
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import needs_torch  # noqa: F401
import pytest
import worlds
from programs import imported

sys.path.append(str(Path(__file__).parents[2]))  # bench

from bench.suites.devices.spatial import MODELS, compare_models

SAMPLE = int(os.environ.get("TEST_CASES", "1"))  # from each package
SEED = os.environ.get("TEST_SEED", "1")
LARGE = {"MONAI VNet", "MONAI SwinUNETR", "diffusers Mochi", "diffusers HunyuanVideo 1.5"}


def sample(package: str) -> list[str]:
    names = [
        name
        for name, model in MODELS.items()
        if model.package.partition(".")[0] == package and not model.timed and name not in LARGE
    ]
    return sorted(random.Random(SEED).sample(names, min(SAMPLE, len(names))))


@pytest.mark.parametrize("package", ["monai", "diffusers", "timm", "segmentation_models_pytorch"])
def test_models_equal_the_undivided_ones(package: str) -> None:
    if package == "monai":  # the only package that needs no others
        imported("monai")
    elif not find_spec(package):
        pytest.skip(f"needs {package}")
    names = sample(package)
    wrong: list[Any] = []
    for outcomes in worlds.run(2, compare_models, names):
        wrong += [(name, outcome) for name, outcome in outcomes.items() if outcome["outcome"] != "right"]
        assert all(outcome["share"] > 0.8 for outcome in outcomes.values())
    assert not wrong
