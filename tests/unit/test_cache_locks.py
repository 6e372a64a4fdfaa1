"""A process waits once for a cache or a journal that another process keeps locked, and goes on without it."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from journals import PLAIN, journal
from recorder import Recorder

from mucudnn._native import parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.costs.file import LockedError
from mucudnn.costs.journal import journal_of
from mucudnn.costs.records import Machine, Measurement
from mucudnn.problems.kernels import Kernel

HERE = Machine("host", "a device", "a library 1.0", 1)
KERNEL = Kernel(parse_descriptor("mb8_ic4ih5_oc4_kh3")[0], "forward")
MEASURED = Measurement(8, "ALGORITHM", "CUDNN_STATUS_SUCCESS", 0, "", 1.0)
HOLD = {
    "transaction": "import sqlite3; held = sqlite3.connect(path, isolation_level=None)\n"
    "held.execute('BEGIN IMMEDIATE')",
    "claim": "from pathlib import Path; from mucudnn.costs.claims import Claims\n"
    "held = Claims(Path(path)).claim('the file itself'); assert held.__enter__()",
    "journal": "import fcntl; held = open(path + '.journal', 'a'); fcntl.flock(held, fcntl.LOCK_EX)",
}


@contextmanager
def locked_by_another_process(path: Path, how: str) -> Iterator[None]:
    script = f"import sys; path = sys.argv[1]\n{HOLD[how]}\nprint('held', flush=True); sys.stdin.read()"
    with subprocess.Popen(
        [sys.executable, "-c", script, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
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
    journal_of(path).write_text(journal("host", PLAIN))
    return path


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    waits: list[float] = []
    monkeypatch.setattr("mucudnn.costs.file.WAITING_SECONDS", 0.05)
    monkeypatch.setattr("mucudnn.costs.journal.WAITING_SECONDS", 0.05)
    monkeypatch.setattr("time.sleep", waits.append)
    return waits


@pytest.mark.parametrize("how", HOLD)
def test_a_lock_is_waited_for_once_and_told_once(how: str, path: Path, waits: list[float]) -> None:
    listener = Recorder()
    with locked_by_another_process(path, how):
        for shape in range(3):
            with Cache.of_user(listener, needed=False) as cache:
                cache.add(HERE, KERNEL, MEASURED)
                assert cache.measurements(HERE, KERNEL) == [MEASURED]
                assert cache.kept == (how == "journal")
            assert bool(waits) == (shape == 0)
            waits.clear()
        (message,) = listener.messages
        assert f"{journal_of(path) if how == 'journal' else path} " in message
        assert ("or name another file in MUCUDNN_CACHE" in message) == (how != "journal")
    with Cache.of_user(listener, needed=False) as cache:  # the lock is free again
        assert cache.kept
        assert cache.query("SELECT count(*) FROM taken_journal") == [(1,)]
    assert len(listener.messages) == 1
    assert not waits


def test_a_lock_that_comes_while_the_cache_is_open_is_the_same_wait(path: Path, waits: list[float]) -> None:
    listener = Recorder()
    with Cache.of_user(listener, needed=False) as cache, locked_by_another_process(path, "transaction"):
        cache.add(HERE, KERNEL, MEASURED)
        assert cache.measurements(HERE, KERNEL) == [MEASURED]
        assert waits
        waits.clear()
        with Cache.of_user(listener, needed=False) as later:
            assert not later.kept
    assert not waits
    assert len(listener.messages) == 1


def test_a_lock_that_is_soon_free_is_waited_for(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = locked_by_another_process(path, "transaction")
    lock.__enter__()
    monkeypatch.setattr("time.sleep", lambda _: lock.__exit__(None, None, None))
    with Cache.of_user(Recorder(), needed=True) as cache:
        assert cache.kept


def test_a_needed_cache_that_is_locked_is_an_error(path: Path, waits: list[float]) -> None:
    with locked_by_another_process(path, "transaction"):
        with pytest.raises(LockedError, match="is locked by another process"):
            Cache.of_user(Recorder(), needed=True)
        with Cache.read_only(path) as cache:  # readers need no lock of a writer
            assert cache.machines() == []


def rows_seen_by_another_process(path: Path) -> int:
    script = """import sqlite3, sys
(count,) = sqlite3.connect(sys.argv[1]).execute("SELECT count(*) FROM measurements").fetchone()
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
