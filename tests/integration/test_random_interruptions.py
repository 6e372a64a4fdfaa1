"""Processes that are killed, fork, or may not write while they measure spoil nothing for others.

Each case is a seed: some rounds of one to three workers on one cache and its journal, each with a fate of its
own. Workers are commands, Python calls, drop-ins and programs that fork. In some rounds nobody may write into
the folder. After each round:

- a worker that was not killed has succeeded, also on a full disk, and without a traceback
- a plan that could not be written is one sentence with the file and the reason
- sqlite finds no damage, and all rows of the earlier rounds are there
- the folder has the files of a cache and a journal, and no others
- each plan is whole

    TEST_SEED=7     begin with case 7 instead of 1
    TEST_CASES=500  run that many cases
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import needs_torch  # noqa: F401
import pytest
from cached_rows import key_of
from programs import SHIM, compile_c, environment, preload
from random_cases import cases

from mucudnn.costs.cache import Cache
from mucudnn.costs.journal import journal_of, rows_of
from mucudnn.costs.schema import Row
from mucudnn.errors import MucudnnError
from mucudnn.plans.any_plan import read_plan

NATIVE_TESTS = Path(__file__).parents[1] / "native"
WORKS = (
    "optimize", "convolve", "drop_in", "forks", "merge", "trial", "budget", "tiles", "converted", "kept",
    "plan", "memory plan", "spatial plan",
)  # fmt: skip
SUFFIXES = ("", "-wal", "-shm", "-journal", ".lock", ".journal", "-plans")
FILES = {f"cache.sqlite{suffix}" for suffix in SUFFIXES}
SEEDS = cases(3, first=1)


class World:
    """A process whose children measure. Closed by `with`."""

    def __init__(self, folder: Path) -> None:
        disk = folder / "full_disk.so"
        compile_c("-shared", "-fPIC", Path(__file__).with_name("full_disk.c"), "-o", disk, "-ldl")
        variables = {
            "LD_PRELOAD": preload(disk, SHIM), "MUCUDNN_LIBRARY": "host", "PYTHONPATH": str(NATIVE_TESTS),
            "MUCUDNN_LOG": "warning", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1",
        }  # fmt: skip
        self.process = subprocess.Popen(
            [sys.executable, Path(__file__).with_name("interrupted_process.py"), disk],
            env=environment(**variables), stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip

    def __enter__(self) -> World:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate()

    def run(self, cache: Path, workers: list[dict[str, Any]]) -> list[int | None]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([str(cache), workers]) + "\n")
        self.process.stdin.flush()
        codes: list[int | None] = json.loads(self.process.stdout.readline())
        return codes


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with World(tmp_path_factory.mktemp("world")) as made:
        yield made


def any_worker(random: Random) -> dict[str, Any]:
    fate = random.choice(("none", "killed", "killed", "full disk"))
    return {
        "work": random.choice(WORKS),
        "seed": random.randrange(100),
        "kill_after": random.uniform(0, 0.4) ** 1.5 if fate == "killed" else None,
        "room": int(2 ** random.uniform(0, 18)) if fate == "full disk" else None,
    }


def everything() -> list[dict[str, Any]]:
    """Return a worker for each kind of work, which nothing disturbs."""
    return [{"work": work, "seed": 1, "kill_after": None, "room": None} for work in WORKS]


def keys_of(rows: Iterable[Row]) -> set[tuple[Any, ...]]:
    return {(kind.name, *key_of(kind, row)) for kind, row in rows}


def keys_in(cache: Path) -> set[tuple[Any, ...]]:
    try:
        opened = Cache.read_only(cache)
    except MucudnnError as error:
        if not str(error).endswith("is empty"):
            raise
        return set()
    with opened:
        assert opened.query("PRAGMA integrity_check") == [("ok",)]
        return keys_of(opened.rows())


def run_round(
    world: World, cache: Path, workers: list[dict[str, Any]], *, is_read_only: bool = False
) -> tuple[list[str], set[tuple[Any, ...]]]:
    """Run the workers together. Return what each has said, and the keys of the rows that are kept."""
    folder, errors = cache.parent, [cache.parents[1] / f"errors-{n}" for n in range(len(workers))]
    kept = keys_in(cache)
    closed = [folder, *folder.rglob("*")] if is_read_only else []
    for path in closed:
        path.chmod(0o555 if path.is_dir() else 0o444)
    for worker, file in zip(workers, errors, strict=True):
        file.unlink(missing_ok=True)
        worker |= {"errors": str(file), "is_user": is_read_only}
    codes = world.run(cache, workers)
    for path in closed:
        path.chmod(0o755)
    said = [file.read_text() if file.exists() else "" for file in errors]
    for worker, code, text in zip(workers, codes, said, strict=True):
        assert code == 0 or (code is None and worker["kill_after"] is not None), (worker, text)
        assert "Traceback" not in text, (worker, text)
        assert "damaged" not in text, (worker, text)
        for refusal in re.findall("refused: .*", text):
            assert re.search(r"plan .*\d\.plan cannot be written: (No space left|Permission denied)", refusal)
    assert {file.name for file in folder.iterdir()} <= FILES, workers
    for plan in folder.glob("*-plans/*.plan"):
        read_plan(plan)
    keys = keys_in(cache)
    assert kept <= keys, (workers, kept - keys)
    return said, keys


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    """Return the path of a cache that does not exist, beside the folder for plans."""
    path = tmp_path / "folder" / "cache.sqlite"
    path.with_name("cache.sqlite-plans").mkdir(parents=True)
    return path


@pytest.mark.parametrize("seed", SEEDS)
def test_interrupted_workers_spoil_nothing_for_others(seed: int, world: World, cache: Path) -> None:
    random = Random(f"interruptions {seed}")
    for _ in range(random.randint(2, 5)):
        workers = [any_worker(random) for _ in range(random.randint(1, 3))]
        run_round(world, cache, workers, is_read_only=random.random() < 0.2)
    said, _ = run_round(world, cache, everything())
    _, keys = run_round(world, cache, [worker for worker in everything() if worker["work"] == "merge"])
    assert not re.search("Warning|damage|refused", "".join(said))
    journal = keys_of(rows_of(journal_of(cache).read_text()))
    assert any(".tile=" in name for key in journal for name in map(str, key))
    assert journal <= keys


@pytest.mark.parametrize("seed", SEEDS[:1])
def test_sixty_processes_at_once_keep_all_that_they_measure(seed: int, world: World, cache: Path) -> None:
    random = Random(f"crowd {seed}")
    crowd = [worker | {"seed": random.randrange(100)} for worker in 5 * everything()][:60]
    said, keys = run_round(world, cache, crowd)
    assert not re.search("Warning|refused", "".join(said))
    assert {kind for kind, *_ in keys} >= {"measurement", "enumeration", "comparison", "step_time", "trial"}


def test_in_a_folder_that_may_only_be_read_all_work_goes_on(world: World, cache: Path) -> None:
    said, _ = run_round(world, cache, everything(), is_read_only=True)
    silent = {work for work, text in zip(WORKS, said, strict=True) if not re.search("denied|read-only", text)}
    assert silent == {"merge"}  # it finds nothing to merge
