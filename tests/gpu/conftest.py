"""Runs with `pytest -m gpu tests/gpu` alone; with TEST_GPU_ENGINE=host without a GPU (gpu_engine.py)."""

from __future__ import annotations

import pytest
from gpu_engine import ON_GPU, open_gpu_engine

from mucudnn._native import Engine


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr == "gpu":
        # What libraries of other versions warn of is not what is tested here.
        config.addinivalue_line("filterwarnings", "default")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if ON_GPU:
        return
    left_out = [item for item in items if "only_on_gpu" in getattr(item, "fixturenames", ())]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def only_on_gpu() -> None:
    """Of tests that are left out on the stand-in."""


@pytest.fixture(scope="session")
def engine() -> Engine:
    """cuDNN on the current device, or its stand-in."""
    return open_gpu_engine()


@pytest.fixture(scope="module", autouse=True)
def _one_cache(one_cache: None) -> None:
    """For every file of this folder."""
