"""Helpers that run `--engine cudnn` without a GPU: on the host engine and our CUDA runtime."""

import os
import subprocess
import sys
from pathlib import Path

from programs import HANGS, cudart_library

ON_CUDA = """
import numpy as np
from mucudnn._native import STRIDED, Engine, EngineError, Problem, host_library
from mucudnn.problems.kernels import Kernel
cuda = Engine(host_library(), cuda=True)
host = Engine(host_library())

def run(engine, problem, pass_, execute):
    sizes = (problem.x_elements, problem.w_elements, problem.y_elements)
    memories = [engine.allocate(size * problem.element_size) for size in sizes]
    for seed, (memory, size) in enumerate(zip(memories, sizes)):
        memory.fill_random(problem.data_type, size, seed)
    execute(engine, problem, pass_, *memories, engine.allocate(2**20))
    return [memory.read(problem.data_type, size) for memory, size in zip(memories, sizes)]
"""


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment without the variables of mucudnn, and with `more`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MUCUDNN_")}
    return {**kept, **more}


def on_stand_in(**more: str) -> dict[str, str]:
    """Return the environment in which the loader finds our CUDA runtime before any other."""
    folder = str(Path(cudart_library()).parent)
    path = os.environ.get("LD_LIBRARY_PATH", "")
    return environment(LD_LIBRARY_PATH=f"{folder}:{path}".rstrip(":"), **more)


def mucudnn(*arguments: str, env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mucudnn", *arguments]
    return subprocess.run(command, env=env, capture_output=True, text=True, check=False, timeout=HANGS)


def check_script(script: str) -> None:
    """Run ON_CUDA and then a script in one process. Fail if an assertion of the script fails."""
    command = [sys.executable, "-c", ON_CUDA + script]
    result = subprocess.run(
        command, env=on_stand_in(), capture_output=True, text=True, check=False, timeout=HANGS
    )
    assert result.returncode == 0, result.stderr
