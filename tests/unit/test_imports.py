"""A decision from recorded measurements imports little, because most of its time would be imports."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import cast

import pytest
from fake_engine import FakeEngine

from mucudnn._native import Engine
from mucudnn.costs.cache import Cache
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.problems.kernels import Flags, read_kernels

NETWORK = "mb8_ic4ih5_oc4_kh3"
MOST = 190  # modules beyond those of an empty program; 166 with Python 3.11
COUNT = """
import sys
before = set(sys.modules)
from mucudnn.cli import main
assert main(sys.argv[1:]) == 0
print(*sorted(set(sys.modules) - before), file=sys.stderr)
"""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("recorded") / "cache.sqlite"
    with Cache.open(path) as cache:
        bench = Bench(cast(Engine, FakeEngine()), cache, Listener())
        benchmark(bench, read_kernels(NETWORK, Flags(), ["forward"]), "power_of_two", comparing=False)
    return path


def imported(recorded: Path, *flags: str) -> set[str]:
    """Return the modules that `mucudnn optimize` imports to decide."""
    command = [sys.executable, "-c", COUNT, "optimize", NETWORK, "--replay", str(recorded), *flags]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    if "--json" in flags:
        assert json.loads(ran.stdout)["kernels"]
    return set(ran.stderr.split())


def test_a_decision_from_recorded_measurements_imports_few_modules(recorded: Path) -> None:
    modules = imported(recorded, "--json")
    heavy = {"numpy", "pulp", "rich", "torch", "statistics", "importlib.metadata", "importlib.resources"}
    assert not modules & heavy
    assert len(modules) <= MOST, sorted(modules)


def test_a_table_needs_rich_alone(recorded: Path) -> None:
    modules = imported(recorded)
    assert "rich" in modules
    assert not modules & {"numpy", "pulp", "torch", "importlib.metadata"}


def test_a_total_needs_numpy_and_no_linear_program(recorded: Path) -> None:
    modules = imported(recorded, "--total-workspace", "2MiB", "--json")
    assert not modules & {"pulp", "highspy", "rich", "torch"}
