"""A signal handler's error comes through from any moment of work with the cache, and leaves no lock.

The program may keep the error, and with it the frames of its traceback and all that they refer to.

    TEST_SEED=7     begin with case 7
    TEST_CASES=500  run that many cases
"""

from __future__ import annotations

import shutil
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from random import Random

import pytest
from cached_rows import HERE, KERNEL
from interrupting import ERRORS, Handler, moments_of, run_under
from journals import PLAIN, journal
from random_cases import cases

from mucudnn.costs.cache import Cache
from mucudnn.costs.claims import Claims
from mucudnn.costs.journal import journal_of
from mucudnn.costs.records import Comparison, Listed, Measurement
from mucudnn.forks import no_fork
from mucudnn.listener import Listener

FILES = ("cache.sqlite", "-wal", "-shm", "-journal", ".lock", ".damaged", "journal")


def use_cache() -> None:
    with Cache.of_user(Listener(), needed=False) as cache:
        for claimed in cache.claimed(["a kernel"], str):
            cache.add(HERE, KERNEL, Measurement(8, claimed, "CUDNN_STATUS_SUCCESS", 0, "", 1.0))
        cache.add_enumerations(HERE, KERNEL, {8: [Listed("ALGORITHM", 100, "")]})
        cache.add_comparison(HERE, KERNEL, None, "divided", Comparison(*[1.0] * 4))
        assert cache.measurements(HERE, KERNEL)


def fill(path: Path) -> None:
    use_cache()
    assert path.stat().st_size > 0


def damage(path: Path) -> None:
    fill(path)
    path.write_bytes(path.read_bytes()[:100] + b"\xff" * 4000)


def write_journal(path: Path) -> None:
    journal_of(path).write_text(journal("host", PLAIN))


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # opened, but not yet assigned
@pytest.mark.parametrize("prepare", [None, fill, damage, write_journal])
def test_an_interruption_comes_through_and_leaves_no_lock(
    prepare: Callable[[Path], None] | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "prepared"
    folder.mkdir()
    monkeypatch.setenv("MUCUDNN_CACHE", str(folder / "cache.sqlite"))
    if prepare is not None:
        prepare(folder / "cache.sqlite")

    def copy(name: object) -> Path:
        shutil.copytree(folder, tmp_path / str(name))
        path = tmp_path / str(name) / "cache.sqlite"
        monkeypatch.setenv("MUCUDNN_CACHE", str(path))
        return path

    copy("first")
    use_cache()  # the cases are about neither imports nor what is remembered
    copy("whole")
    most = moments_of(use_cache)
    for seed in cases(25):
        path, random = copy(seed), Random(f"interruptions of a cache {seed}")
        error = random.choice(ERRORS)("of the handler")
        handler = Handler(error, random.randint(1, most))
        kept = run_under(handler, use_cache)
        assert kept is error or not handler.raised_in, (seed, kept, handler.raised_in)
        if handler.raised_in:
            check_free(path, seed)
        error.__traceback__ = None  # it leads to this frame, so that they would keep each other alive
        shutil.rmtree(path.parent)


def check_free(path: Path, seed: int) -> None:
    """Check that no lock is held and that no temporary file is left, while the error is alive."""
    if path.exists() and path.stat().st_size:
        with closing(sqlite3.connect(path, timeout=0)) as other:
            try:
                other.execute("BEGIN IMMEDIATE")
            except sqlite3.DatabaseError as failure:
                if "malformed" not in str(failure):
                    raise
    with closing(Claims(path)) as claims:
        for name in ("the file itself", "a kernel"):
            with claims.claim(name) as ours:
                assert ours, (seed, name)
    free: list[bool] = []

    def try_fork_lock() -> None:
        free.append(no_fork.acquire(blocking=False))
        if free[0]:
            no_fork.release()

    thread = threading.Thread(target=try_fork_lock)
    thread.start()
    thread.join()
    assert free == [True], seed
    assert all(file.name.endswith(FILES) for file in path.parent.iterdir()), seed
