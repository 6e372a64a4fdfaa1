import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import settings
from programs import cuda_program_folders

from mucudnn import _native
from mucudnn.arrays import dispatch
from mucudnn.arrays.recent import Recent
from mucudnn.settings import SETTINGS

# A failed assertion in these helper modules shows its values, like one in a test.
pytest.register_assert_rewrite("client_problems", "cudnn_stand_in", "host_forward", "reference", "shim_cases")

# A shell starts a job in the background with interrupts ignored, and a child would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

# The time of an example depends on the machine, so it has no deadline. CI tries a quarter of the examples.
# Each run tries the same ones, so that only a change can make it fail.
settings.register_profile("all", deadline=None)
settings.register_profile("ci", deadline=None, max_examples=25, derandomize=True, database=None)
settings.load_profile("ci" if os.environ.get("CI") else "all")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--every-case", action="store_true", help="run all combinations of parameters")


@pytest.hookimpl(optionalhook=True)  # the plugin may be absent
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int | None:
    """Return None for a process on each core, or 0 for a single file, and for a GPU with its one memory."""
    is_file = len(config.args) == 1 and ".py" in config.args[0]
    on_gpu = config.option.markexpr == "gpu" and "TEST_GPU_ENGINE" not in os.environ
    return 0 if is_file or on_gpu else None


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep those cases of each test that together have every value of each of its parameters.

    All cases run with --every-case, under TEST_CASES, on a GPU, and when -k or a test's name selects tests.
    """
    options = config.option
    is_selected = options.keyword or any("::" in argument for argument in config.args)
    if is_selected or options.every_case or options.markexpr == "gpu" or "TEST_CASES" in os.environ:
        return
    seen: dict[str, set[tuple[int, str]]] = {}
    kept, left_out = [], []
    for item in items:
        callspec = getattr(item, "callspec", None)
        values = set(enumerate(callspec._idlist)) if callspec else set()
        of_test = seen.setdefault(item.nodeid.partition("[")[0], set())
        (left_out if values and values <= of_test else kept).append(item)
        of_test |= values
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept


@contextmanager
def empty_cache(folder: Path) -> Iterator[Path]:
    """Set a new cache in the folder, and no other setting. Forget all decisions. Yield the cache's path."""
    path = folder / "cache.sqlite"
    with pytest.MonkeyPatch.context() as patch:
        for setting in SETTINGS:
            patch.delenv(setting.variable, raising=False)
        patch.setenv("MUCUDNN_CACHE", str(path))
        patch.setattr(dispatch, "_prepared", Recent(4096))
        answers = sys.modules.get("mucudnn.torch.choosing.answers")
        if answers is not None:
            patch.setattr(answers, "_answers", Recent(2048))
        yield path


@pytest.fixture(scope="session", autouse=True)
def _scratch_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Hide the user's cache and settings from all tests and from the programs that they start."""
    with empty_cache(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture(scope="session", autouse=True)
def _shared_compiled_code(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let all processes of a run share what Inductor compiles. Another run may have another PyTorch."""
    folder = tmp_path_factory.getbasetemp()
    of_run = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(of_run / "inductor"))
        yield


@pytest.fixture(scope="module")
def one_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Let all tests of a file share one cache, so that each kernel is measured once."""
    with empty_cache(tmp_path_factory.mktemp("cache")):
        yield


@pytest.fixture
def cache_path(tmp_path: Path) -> Iterator[Path]:
    """Yield the path of an empty cache for one test."""
    with empty_cache(tmp_path) as path:
        yield path


@pytest.fixture(scope="session")
def search_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Return an LD_LIBRARY_PATH with the host engine as cuDNN, our CUDA runtime and OpenBLAS."""
    return cuda_program_folders(tmp_path_factory.mktemp("host_engine") / "lib")


@pytest.fixture(scope="session")
def engine() -> _native.Engine:
    """Return the host engine on one thread."""
    return _native.Engine(_native.host_library(), threads=1)
