"""A process waits once for a cache that another process keeps locked, and goes on without it."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cached_rows import HERE, KERNEL
from recorder import Recorder

from mucudnn.costs.cache import Cache
from mucudnn.costs.file import CacheError
from mucudnn.costs.records import Measurement

MEASURED = Measurement(8, "ALGORITHM", "CUDNN_STATUS_SUCCESS", 0, "", 1.0)
HOLD = """import sqlite3, sys; held = sqlite3.connect(sys.argv[1], isolation_level=None)
held.execute("BEGIN IMMEDIATE")
print("held", flush=True); sys.stdin.read()"""


@contextmanager
def locked_by_another_process(path: Path) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield
        process.communicate()
    assert process.returncode == 0


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "cache.sqlite"
    monkeypatch.setenv("MUCUDNN_CACHE", str(path))
    Cache.open(path).__exit__()
    return path


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the seconds that each connection to sqlite would wait for a lock."""
    waits: list[float] = []
    connect = sqlite3.connect

    def connect_noting(*arguments: Any, timeout: float = 0.0, **options: Any) -> sqlite3.Connection:
        waits.append(timeout)
        return connect(*arguments, timeout=timeout, **options)

    monkeypatch.setattr("mucudnn.costs.file.WAITING_SECONDS", 0.05)
    monkeypatch.setattr("sqlite3.connect", connect_noting)
    return waits


def use(listener: Recorder) -> bool:
    """Add a row to the user's cache, and return whether it is kept."""
    with Cache.of_user(listener, needed=False) as cache:
        cache.add(HERE, KERNEL, MEASURED)
        assert cache.measurements(HERE, KERNEL) == [MEASURED]
        return cache.kept


def test_a_locked_cache_is_waited_for_once_and_told_once(path: Path, waits: list[float]) -> None:
    listener = Recorder()
    with locked_by_another_process(path):
        assert not use(listener)
        assert any(waits)
        waits.clear()
        assert not any(use(listener) for _ in range(2))
        (message,) = listener.messages
        assert f"{path} is locked by another process" in message
        assert "or name another file in MUCUDNN_CACHE" in message
    assert use(listener), "the lock is free again"
    assert len(listener.messages) == 1
    assert not any(waits)


def test_a_lock_that_comes_while_the_cache_is_open_is_the_same_wait(path: Path, waits: list[float]) -> None:
    listener = Recorder()
    with Cache.of_user(listener, needed=False) as cache, locked_by_another_process(path):
        waits.clear()
        cache.add(HERE, KERNEL, MEASURED)
        assert cache.measurements(HERE, KERNEL) == [MEASURED]
        assert not cache.kept
        assert not use(listener)
    assert not any(waits)
    assert len(listener.messages) == 1


def test_a_lock_that_is_soon_free_is_waited_for(path: Path) -> None:
    lock = locked_by_another_process(path)
    lock.__enter__()
    free = threading.Timer(0.2, lock.__exit__, (None, None, None))
    free.start()
    with Cache.of_user(Recorder(), needed=True) as cache:
        assert cache.kept
    free.join()


def test_a_needed_cache_that_is_locked_is_an_error(path: Path, waits: list[float]) -> None:
    with locked_by_another_process(path):
        with pytest.raises(CacheError, match="is locked by another process"):
            Cache.of_user(Recorder(), needed=True)
        with Cache.read_only(path) as cache:  # readers need no lock of a writer
            assert cache.machines() == []


def rows_seen_by_another_process(path: Path) -> int:
    script = """import sqlite3, sys
(count,) = sqlite3.connect(sys.argv[1]).execute("SELECT count(*) FROM rows").fetchone()
print(count)"""
    return int(subprocess.check_output([sys.executable, "-c", script, path]))


@pytest.mark.parametrize("again", [Cache.open, Cache.read_only])
def test_a_cache_that_is_opened_twice_keeps_its_locks(again: Callable[[Path], Cache], path: Path) -> None:
    with Cache.open(path) as cache:
        cache.add(HERE, KERNEL, MEASURED)
        again(path).__exit__()
        assert rows_seen_by_another_process(path) == 1  # without locks this process would remove the log
        cache.add(HERE, KERNEL, replace(MEASURED, micro_batch=4))
        assert rows_seen_by_another_process(path) == 2
