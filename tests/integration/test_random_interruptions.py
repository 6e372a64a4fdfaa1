"""Processes that are killed, that fork, or whose disk is full while they measure, spoil nothing for others.

Each case is a seed: some rounds of one to three workers on one cache and its journal, each with a fate of its
own. Workers are commands, Python calls, drop-ins and programs that fork. After each round:

- a worker that was not killed has succeeded, also on a full disk, and without a traceback
- sqlite finds no damage, and all rows of the earlier rounds are there
- the folder has the files of a cache and a journal, and no others
- each plan is whole

    TEST_SEED=7     begin with case 7 instead of 1
    TEST_CASES=500  run that many cases
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest
from programs import SHIM, compile_c, environment, preload
from random_cases import cases

from mucudnn.costs.cache import Cache
from mucudnn.plans.plan import Plan

NATIVE_TESTS = Path(__file__).parents[1] / "native"
WORKS = ("optimize", "convolve", "drop_in", "forks", "merge", "trial", "budget", "plan")
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
            "MUCUDNN_LOG": "warning", "OPENBLAS_NUM_THREADS": "1",
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


def any_worker(random: Random, errors: Path) -> dict[str, Any]:
    fate = random.choice(("none", "killed", "killed", "full disk"))
    return {
        "work": random.choice(WORKS),
        "seed": random.randrange(100),
        "kill_after": random.uniform(0, 0.4) ** 1.5 if fate == "killed" else None,
        "room": int(2 ** random.uniform(0, 18)) if fate == "full disk" else None,
        "errors": str(errors),
    }


def keys_in(cache: Path) -> set[tuple[Any, ...]]:
    if not cache.exists() or cache.stat().st_size == 0:
        return set()
    with Cache.read_only(cache) as opened:
        assert opened.query("PRAGMA integrity_check") == [("ok",)]
        return {(kind.name, *(row[name] for name in kind.key)) for kind, row in opened.rows()}


@pytest.mark.parametrize("seed", SEEDS)
def test_interrupted_workers_spoil_nothing_for_others(seed: int, world: World, tmp_path: Path) -> None:
    random = Random(f"interruptions {seed}")
    folder = tmp_path / "cache"
    folder.mkdir()
    cache, kept = folder / "cache.sqlite", set[tuple[Any, ...]]()
    for round_ in range(random.randint(2, 5)):
        workers = [
            any_worker(random, tmp_path / f"errors-{round_}-{number}")
            for number in range(random.randint(1, 3))
        ]
        codes = world.run(cache, workers)
        said = [
            Path(worker["errors"]).read_text() if Path(worker["errors"]).exists() else ""
            for worker in workers
        ]
        for worker, code, text in zip(workers, codes, said, strict=True):
            assert code == 0 or (code is None and worker["kill_after"] is not None), (worker, text)
            assert "Traceback" not in text, (worker, text)
            assert "damaged" not in text, (worker, text)
        assert {file.name for file in folder.iterdir()} <= FILES, workers
        for plan in folder.glob("*-plans/*.plan"):
            Plan.read(plan)
        keys = keys_in(cache)
        assert kept <= keys, (workers, kept - keys)
        kept = keys
    last = {"kill_after": None, "room": None, "errors": str(tmp_path / "errors-last")}
    for _ in range(2):
        assert world.run(cache, [{**last, "work": work, "seed": 1} for work in WORKS]) == [0] * len(WORKS)
    assert "Warning" not in (tmp_path / "errors-last").read_text()
    assert "damage" not in (tmp_path / "errors-last").read_text()
