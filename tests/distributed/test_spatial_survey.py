"""A few models of the survey, drawn from a seed, are right when they are divided over two ranks."""

from __future__ import annotations

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

SAMPLE = 2  # from each package
LARGE = {"MONAI VNet", "MONAI SwinUNETR", "diffusers Mochi", "diffusers HunyuanVideo 1.5"}


def sample(package: str) -> list[str]:
    names = [
        name
        for name, model in MODELS.items()
        if model.package.partition(".")[0] == package and not model.timed and name not in LARGE
    ]
    return sorted(random.Random(1).sample(names, SAMPLE))


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
