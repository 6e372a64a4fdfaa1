"""The drop-in's cost in the legacy API: for a hooked call, and for each slice or tile of a divided call.

The timing loop is in `hook_timing.c`. It uses the host engine, and a convolution so small that the cost of
the drop-in shows.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.lib.record import Record
from bench.suites.drop_in.shim import compare, compile_c
from mucudnn._native import Engine, Problem, format_plan, host_library, parse_descriptor
from mucudnn.drop_in.libraries import shim_path
from mucudnn.problems.kernels import Kernel

ROUNDS = 101
PARTS, SIDE = 64, 4  # each part is an image of 4x4
ALGORITHM = "IMPLICIT_GEMM"  # the loop asks for it


def _problem(mini_batch: int, height: int) -> Problem:
    """Return a convolution with a filter of 1×3, whose tiles in height need no halo."""
    return parse_descriptor(f"mb{mini_batch}_ic1ih{height}iw{SIDE}_oc1_kh1kw3_ph0pw1")[0]


SAMPLE, MINI_BATCH, LARGE_SAMPLE = _problem(1, SIDE), _problem(PARTS, SIDE), _problem(1, PARTS * SIDE)


def measure(options: argparse.Namespace) -> list[Record]:
    """Measure a hooked call in three modes, a slice, and a tile. Needs a C compiler."""
    with TemporaryDirectory() as folder:
        timing, plan = Path(folder) / "timing", Path(folder) / "parts.plan"
        headers = Path(__file__).parents[3] / "native" / "abi"
        compile_c(Path(__file__).with_name("hook_timing.c"), timing, f"-I{headers}")
        plan.write_text(_plan())
        cache = Path(folder) / "cache.sqlite"
        cache.with_name(f"{cache.name}.journal").write_text(_journal())

        def cost(case: str, metric: str, problem: Problem, **environment: str) -> Record:
            sizes = str(problem.mini_batch), str(problem.input[0])
            command = (timing, str(ROUNDS), *sizes, host_library(), str(shim_path()))
            return compare("hooks", case, metric, "ns", 1.0, *command, **environment)

        hooked = "a hooked call, a convolution of one sample"
        recording = {"MUCUDNN_MODE": "record", "MUCUDNN_RECORD": str(Path(folder) / "record")}
        online = {"MUCUDNN_MODE": "online", "MUCUDNN_CACHE": str(cache)}
        planned = {"MUCUDNN_MODE": "plan", "MUCUDNN_PLAN": str(plan)}
        return [
            cost(f"{hooked}, mode off", "pass-through cost", SAMPLE, MUCUDNN_MODE="off"),
            cost(f"{hooked}, mode record", "pass-through cost", SAMPLE, **recording),
            cost(f"{hooked}, mode online, left undivided", "pass-through cost", SAMPLE, **online),
            cost(f"{PARTS} slices against a loop of our own", "cost of a slice", MINI_BATCH, **planned),
            cost(f"{PARTS} tiles against a loop of our own", "cost of a tile", LARGE_SAMPLE, **planned),
        ]


def _plan() -> str:
    """Return a plan that divides a mini-batch into samples, and a large sample into equal tiles."""
    slices, tile = [(1, ALGORITHM, 1.0, 0)] * PARTS, (1, f"{ALGORITHM}.tile={SIDE}", 1.0, 0)
    return format_plan(
        _identity(_engine()),
        [
            (MINI_BATCH, "forward", 1, slices, [], [], []),
            (LARGE_SAMPLE, "forward", 1, [tile], [], [], []),
        ],
    )


def _journal() -> str:
    """Return a journal for one sample, by which the algorithm that the loop asks for is the fastest."""
    engine = _engine()
    options = [
        [(1, listed.algorithm, 1.0 if listed.algorithm == ALGORITHM else 2.0, listed.workspace)]
        for listed in engine.enumerate(Kernel(SAMPLE, "forward"))
        if listed.status == "CUDNN_STATUS_SUCCESS"
    ]
    header = {**_identity(engine), "threads": "1"}
    return format_plan(header, [(SAMPLE, "forward", 1, options[0], options, [], [])])


def _engine() -> Engine:
    return Engine(host_library(), threads=1)


def _identity(engine: Engine) -> dict[str, str]:
    return {"engine": engine.kind, "device": engine.device, "library": engine.library}
