"""Runs with `pytest -m gpu` alone; with TEST_GPU_ENGINE=host without a GPU (gpu_engine.py)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from gpu_engine import ON_GPU, open_gpu_engine

from mucudnn import dispatch
from mucudnn._native import Engine


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    here = [item for item in items if item.path.is_relative_to(Path(__file__).parent)]
    for item in here:
        # What libraries of other versions warn of is not what is tested here.
        item.add_marker(pytest.mark.filterwarnings("default"))
    if ON_GPU:
        return
    left_out = [item for item in here if "only_on_gpu" in getattr(item, "fixturenames", ())]
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
def one_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is measured for one test of a file serves the others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUCUDNN_CACHE", str(tmp_path_factory.mktemp("cache") / "cache.sqlite"))
        patch.delenv("MUCUDNN_WORKSPACE_LIMIT", raising=False)
        patch.setattr(dispatch, "_prepared", {})
        yield
