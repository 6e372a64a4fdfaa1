from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from mucudnn import _native, dispatch

# How long an example takes depends on the machine, not on whether the property holds.
settings.register_profile("mucudnn", deadline=None)
settings.load_profile("mucudnn")


@pytest.fixture(scope="session", autouse=True)
def scratch_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test reads or writes the cache of whoever runs it, nor does a program that it starts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MUCUDNN_CACHE", str(tmp_path_factory.mktemp("cache") / "cache.sqlite"))
        yield


@pytest.fixture(scope="session")
def engine() -> _native.Engine:
    """The host engine on one thread."""
    return _native.Engine(_native.host_library(), threads=1)


@pytest.fixture
def fresh_decisions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache at the path returned, and a process that has decided nothing yet."""
    path = tmp_path / "cache.sqlite"
    monkeypatch.setenv("MUCUDNN_CACHE", str(path))
    monkeypatch.delenv("MUCUDNN_WORKSPACE_LIMIT", raising=False)
    monkeypatch.setattr(dispatch, "_prepared", {})
    return path
