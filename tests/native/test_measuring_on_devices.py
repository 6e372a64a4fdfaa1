"""Timing a device that works asynchronously waits for its work, not only for the launch."""

import sys
from pathlib import Path

from programs import host_engine_folders, run
from wrapped_cudart import build_cudart

MEASURE = """
from mucudnn._native import Engine, Problem, host_library
from mucudnn.problems.kernels import Kernel
engine = Engine(host_library(), cuda=True)
problem = Problem(mini_batch=1, in_channels=1, out_channels=1, input=(4, 4), kernel=(1, 1))
kernel = Kernel(problem, "forward")
memory = [engine.allocate(4096) for _ in range(3)]
timing = engine.measure(kernel, "IMPLICIT_GEMM", *memory, None, repeats=9, budget_ms=1e9)
assert timing.cpu_ms is None
"""


def test_all_runs_but_the_first_are_given_to_the_device_without_a_pause(tmp_path: Path) -> None:
    build_cudart(tmp_path)
    path = f"{tmp_path}:{host_engine_folders(tmp_path / 'engine')}"
    ran = run(sys.executable, "-c", MEASURE, LD_LIBRARY_PATH=path, TRACE="1")
    assert ran.returncode == 0, ran.stderr
    alone, others = ["record"] * 2 + ["wait"], ["record"] * 9 + ["wait"] * 8
    assert ran.stderr.split()[:23] == alone * 2 + others
