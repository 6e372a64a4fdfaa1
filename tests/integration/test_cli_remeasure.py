"""Times of steps that a program keeps on a busy machine are replaced by later runs on a quiet one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from cached_rows import change_rows
from command_line import Capture, json_of, output_of
from needs_torch import torch  # noqa: F401  # skips these tests without PyTorch

from mucudnn.costs.cache import Cache
from mucudnn.costs.records import StepUses
from mucudnn.costs.schema import STEP_TIME

# The program runs steps by a simulated clock, on which a step with PyTorch's own convolutions takes another
# time than one with mucudnn's. It prints which of them run in the end.
PROGRAM = """
import sys
import torch
import mucudnn.torch as mt
from mucudnn._native import RunTime
from mucudnn.torch.choosing.answers import Answer
from mucudnn.torch.layers import converted

count, ours, stock = int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3])

class Reading:
    def __init__(self):
        self.now = now
    def until(self, after, threads):
        return RunTime((after.now - self.now) * 1e3, (after.now - self.now) * 1e3)

now = 0.0
torch.set_num_threads(1)
converted.decide = lambda *_, **__: Answer(0.5)
model = mt.convert(torch.nn.Sequential(torch.nn.Conv2d(2, 2, 3)))
comparison = model[0]._mucudnn.comparison
comparison._clock = lambda device: Reading()
with torch.no_grad():
    for _ in range(count):
        model(torch.ones(2, 2, 5, 5))
        now += stock if comparison._way == "stock" else ours
print(comparison.result)
"""
BUSY, QUIET = (1.04, 1.0), (1.0, 1.04)  # the seconds of a step with mucudnn's convolutions, and PyTorch's own
Run = Callable[..., str]


@pytest.fixture
def run(cache_path: Path) -> Run:
    """Return a function that runs the program and returns what it prints."""

    def program(count: int, seconds: tuple[float, float], **variables: str) -> str:
        command = [sys.executable, "-c", PROGRAM, str(count), *map(str, seconds)]
        done = subprocess.run(
            command, env={**os.environ, **variables}, check=True, capture_output=True, text=True
        )
        return done.stdout.strip()

    return program


def kept_times(capsys: Capture) -> dict[str, float]:
    rows = map(json.loads, output_of(capsys, ["cache", "export"]).splitlines())
    return {row["way"]: row["time_ms"] for row in rows if row["kind"] == "step_time"}


def test_later_runs_replace_what_a_busy_machine_kept(run: Run, capsys: Capture) -> None:
    assert run(40, BUSY) == "stock"
    assert kept_times(capsys) == pytest.approx({"choices": 1040.0, "stock": 1000.0})
    results = [run(200, QUIET) for _ in range(3)]
    assert results[0] == "stock", "the kept times say so"
    assert results[2] == "choices"
    assert kept_times(capsys) == pytest.approx({"choices": 1000.0, "stock": 1040.0})


def test_a_run_that_measures_anew_replaces_them_at_once(run: Run, capsys: Capture, cache_path: Path) -> None:
    assert run(40, BUSY) == "stock"
    with Cache.open(cache_path) as cache:
        change_rows(cache, STEP_TIME, lambda _: {"measured_at": "2020-01-01T00:00:00+00:00"})
    assert run(40, QUIET, MUCUDNN_REMEASURE="1") == "choices"
    assert kept_times(capsys) == pytest.approx({"choices": 1000.0, "stock": 1040.0})


def test_uses_of_a_comparison_are_counted_until_a_later_one_confirms_it(run: Run, cache_path: Path) -> None:
    def kept() -> StepUses:
        with Cache.open(cache_path) as cache:
            [counted] = cache.query("SELECT uses, checks FROM step_uses")
        return StepUses(*counted)

    run(40, BUSY)
    run(10, BUSY)
    assert kept().checks == 0
    assert 0 < kept().uses <= 50
    run(400, BUSY)
    assert kept().checks > 0


def test_deleted_times_leave_no_counts_of_their_uses(run: Run, capsys: Capture, cache_path: Path) -> None:
    run(40, BUSY)
    run(10, BUSY)
    with Cache.open(cache_path) as cache:
        assert cache.query("SELECT uses > 0 FROM step_uses") == [(1,)]
        change_rows(cache, STEP_TIME, lambda _: {"measured_at": "2020-01-01T00:00:00+00:00"})
    assert json_of(capsys, ["cache", "prune", "--older-than", "90", "--json"])["rows"] == 2
    with Cache.read_only(cache_path) as cache:
        assert cache.query("SELECT * FROM step_uses") == []
