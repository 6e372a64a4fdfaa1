"""The drop-in's cost in the legacy API: for a hooked call, and for each slice of a divided call.

The timing loop is in `hook_timing.c`. It uses the host engine, and a convolution so small that the cost of
the drop-in shows.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.lib.record import Record
from bench.suites.drop_in.shim import compare, compile_c
from mucudnn._native import Engine, Problem, format_plan, host_library
from mucudnn.drop_in.libraries import shim_path
from mucudnn.problems.kernels import Kernel

ROUNDS = 101
SLICES = 64
PROBLEM = Problem(mini_batch=SLICES, in_channels=1, out_channels=1, input=(4, 4), kernel=(3, 3), padding=1)


def measure(options: argparse.Namespace) -> list[Record]:
    """Measure a hooked call in three modes, and a slice. Needs a C compiler."""
    with TemporaryDirectory() as folder:
        timing, plan = Path(folder) / "timing", Path(folder) / "slices.plan"
        headers = Path(__file__).parents[3] / "native" / "abi"
        compile_c(Path(__file__).with_name("hook_timing.c"), timing, f"-I{headers}")
        plan.write_text(_plan())
        cache = Path(folder) / "cache.sqlite"
        cache.with_name(f"{cache.name}.journal").write_text(_journal())

        def cost(case: str, metric: str, samples: int, **environment: str) -> Record:
            command = (timing, str(ROUNDS), str(samples), host_library(), str(shim_path()))
            return compare("hooks", case, metric, "ns", 1.0, *command, **environment)

        hooked = "a hooked call, a convolution of one sample"
        recording = {"MUCUDNN_MODE": "record", "MUCUDNN_RECORD": str(Path(folder) / "record")}
        online = {"MUCUDNN_MODE": "online", "MUCUDNN_CACHE": str(cache)}
        planned = {"MUCUDNN_MODE": "plan", "MUCUDNN_PLAN": str(plan)}
        return [
            cost(f"{hooked}, mode off", "pass-through cost", 1, MUCUDNN_MODE="off"),
            cost(f"{hooked}, mode record", "pass-through cost", 1, **recording),
            cost(f"{hooked}, mode online, left undivided", "pass-through cost", 1, **online),
            cost(f"{SLICES} slices against a loop of our own", "cost of a slice", SLICES, **planned),
        ]


def _plan() -> str:
    """Return a plan that divides PROBLEM into single samples, with the algorithm that the loop asks for."""
    parts = [(1, "IMPLICIT_GEMM", 1.0, 0)] * SLICES
    return format_plan(_identity(_engine()), [(PROBLEM, "forward", 1, parts, [], [], [])])


def _journal() -> str:
    """Return a journal for one sample, by which the algorithm that the loop asks for is the fastest."""
    engine, problem = _engine(), PROBLEM.replace(mini_batch=1)
    options = [
        [(1, listed.algorithm, 1.0 if listed.algorithm == "IMPLICIT_GEMM" else 2.0, listed.workspace)]
        for listed in engine.enumerate(Kernel(problem, "forward"))
        if listed.status == "CUDNN_STATUS_SUCCESS"
    ]
    header = {**_identity(engine), "threads": "1"}
    return format_plan(header, [(problem, "forward", 1, options[0], options, [], [])])


def _engine() -> Engine:
    return Engine(host_library(), threads=1)


def _identity(engine: Engine) -> dict[str, str]:
    return {"engine": engine.kind, "device": engine.device, "library": engine.library}
