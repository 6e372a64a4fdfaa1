"""A decision from recorded measurements imports little, because most of its time would be imports."""

import json
import os
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
from mucudnn.measuring.runners import Exhaustive
from mucudnn.problems.sources import Flags, read_kernels

NETWORK = "mb8_ic4ih5_oc4_kh3"
MOST = 212  # modules beyond those of an empty program; 207 with Python 3.11, 20 of them for msgspec
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
        bench = Bench(cast(Engine, FakeEngine()), cache, Listener(), Exhaustive())
        benchmark(bench, read_kernels(NETWORK, Flags(), ["forward"]), "power_of_two")
    return path


def imported(recorded: Path, *flags: str) -> set[str]:
    """Return the modules that `mucudnn optimize` imports to decide."""
    command = [
        sys.executable,
        "-c",
        COUNT,
        "optimize",
        NETWORK,
        "--inference",
        "--replay",
        str(recorded),
        *flags,
    ]
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


def test_a_table_needs_no_package(recorded: Path) -> None:
    assert not imported(recorded) & {"numpy", "pulp", "rich", "torch", "importlib.metadata"}


def test_a_total_needs_numpy_and_no_linear_program(recorded: Path) -> None:
    modules = imported(recorded, "--total-workspace", "2MiB", "--json")
    assert not modules & {"pulp", "highspy", "rich", "torch"}


FIRST_CALL = """
import sys
import numpy as np
import mucudnn
convolve = mucudnn.convolution_forward
before = set(sys.modules)
convolve(np.ones((2, 3, 8, 8), np.float32), np.ones((5, 3, 3, 3), np.float32))
print(*(name for name in set(sys.modules) - before if name.startswith("mucudnn")))
"""
INTERRUPTED = """
import os, signal
from importlib.machinery import SourceFileLoader
import mucudnn

def interrupt(loader, path, look=SourceFileLoader.path_stats):
    if path.endswith("convolution.py"):
        os.kill(os.getpid(), signal.SIGALRM)
    return look(loader, path)

def handle(*_):
    raise TimeoutError

SourceFileLoader.path_stats = interrupt
signal.signal(signal.SIGALRM, handle)
try:
    mucudnn.convolution_forward
except TimeoutError:
    print("raised", mucudnn.convolution_forward.__name__)
"""


def run_program(program: str, cache: Path) -> str:
    environment = {**os.environ, "MUCUDNN_CACHE": str(cache)}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout.strip()


def test_the_first_call_imports_no_module_of_mucudnn(tmp_path: Path) -> None:
    assert run_program(FIRST_CALL, tmp_path / "cache.sqlite") == ""


def test_an_error_of_a_signal_handler_during_an_import_reaches_the_program(tmp_path: Path) -> None:
    assert run_program(INTERRUPTED, tmp_path / "cache.sqlite") == "raised convolution_forward"


def test_the_import_of_mucudnn_torch_loads_no_compiler() -> None:
    pytest.importorskip("torch")
    code = (
        "import sys, torch; before = set(sys.modules); "
        "import mucudnn.torch; print(*set(sys.modules) - before)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(ran.stdout.split())
    assert not [m for m in loaded if m.startswith(("torch._dynamo", "torch._inductor", "sympy"))]
    assert not loaded & {"torch.distributed", "pulp", "rich", "matplotlib"}, sorted(loaded)
