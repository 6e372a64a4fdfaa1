"""Tests for a GPU. They run with `pytest -m gpu tests/gpu` only.

Without a GPU they run on the stand-in that TEST_GPU_ENGINE names (gpu_engine.py).
"""

from collections.abc import Iterator

import pytest
from gpu_engine import HAS_CUDA, ON_GPU, open_gpu_engine

from mucudnn._native import Engine


def pytest_configure(config: pytest.Config) -> None:
    if config.option.markexpr == "gpu":
        # The machine may have other versions of libraries, so their new warnings do not fail a test.
        config.addinivalue_line("filterwarnings", "default")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    absent = {
        "only_on_gpu": not ON_GPU,
        "only_on_stand_in": ON_GPU or not HAS_CUDA,
        "only_with_cuda": not HAS_CUDA,
        "only_with_late_streams": ON_GPU or not HAS_CUDA,
    }
    out = {name for name, is_absent in absent.items() if is_absent}
    left_out = [item for item in items if out & set(getattr(item, "fixturenames", ()))]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def only_on_gpu() -> None:
    """Mark tests that need a real GPU, or code that is compiled for one."""


@pytest.fixture
def only_on_stand_in() -> None:
    """Mark tests of the CUDA runtime on the CPU, under PyTorch's CUDA build."""


@pytest.fixture
def only_with_cuda() -> None:
    """Mark tests that need tensors of PyTorch on a CUDA device."""


@pytest.fixture
def only_with_late_streams() -> Iterator[None]:
    """Make the streams of the stand-in of PyTorch's CUDA build late, and mark tests that need that."""
    from stand_in_operators import late_streams

    with late_streams():
        yield


@pytest.fixture(scope="session")
def engine() -> Engine:
    """Return the engine of cuDNN on the current device, or its stand-in."""
    return open_gpu_engine()


@pytest.fixture(scope="module", autouse=True)
def _one_cache(one_cache: None) -> None:
    """Give each file of this folder a cache of its own."""
