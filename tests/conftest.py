import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from programs import cuda_program_folders

from mucudnn import _native
from mucudnn.arrays import dispatch
from mucudnn.settings import SETTINGS

# A failed check in these helpers shows its values, as one in a test does.
pytest.register_assert_rewrite("client_problems", "cudnn_stand_in", "host_forward", "reference", "shim_cases")

# A shell starts a job in the background with interrupts ignored, and a child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes depends on the machine, not on whether the property holds.
settings.register_profile("mucudnn", deadline=None)
settings.load_profile("mucudnn")


@contextmanager
def empty_cache(folder: Path) -> Iterator[Path]:
    """Its path, in a process without any other setting, in which nothing is decided yet."""
    path = folder / "cache.sqlite"
    with pytest.MonkeyPatch.context() as patch:
        for setting in SETTINGS:
            patch.delenv(setting.variable, raising=False)
        patch.setenv("MUCUDNN_CACHE", str(path))
        patch.setattr(dispatch, "_prepared", {})
        yield path


@pytest.fixture(scope="session", autouse=True)
def _scratch_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads the cache or the settings of whoever runs it, nor does a program that it starts."""
    with empty_cache(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture(scope="module")
def one_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """What is measured for one test of a file serves the others."""
    with empty_cache(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture
def cache_path(tmp_path: Path) -> Iterator[Path]:
    """Of an empty cache for one test."""
    with empty_cache(tmp_path) as path:
        yield path


@pytest.fixture(scope="session")
def search_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An LD_LIBRARY_PATH with the host engine as cuDNN, our CUDA runtime and OpenBLAS."""
    return cuda_program_folders(tmp_path_factory.mktemp("host_engine") / "lib")


@pytest.fixture(scope="session")
def engine() -> _native.Engine:
    """The host engine on one thread."""
    return _native.Engine(_native.host_library(), threads=1)
