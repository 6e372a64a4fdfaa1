"""The drop-in's cost in the graph API with a warm journal: for an execution plan, and for its executions.

The timing loops are in `graph_timing.c`. They use the host engine, and convolutions so small that the cost
of the drop-in shows. First the drop-in writes a journal. Then this module replaces the times in the journal,
so that the drop-in takes the decision that a figure needs.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.lib.journal import set_times
from bench.lib.record import Record
from bench.suites.drop_in.shim import compare, compile_c, figure, run_timing
from mucudnn._native import host_library
from mucudnn.drop_in.libraries import shim_path

KERNELS, TIMES = 64, 100
SAMPLES = 100  # the mini-batch of the plans; no power of two, so that its slices have two sizes
FEW, SLICES = 4, 64  # the mini-batches of executions: left undivided, and divided into single samples
ROUNDS = 101
OWN_ENGINE = "eng0"  # the engine that the program (graph_timing.c) asks for


def measure(options: argparse.Namespace) -> list[Record]:
    """Measure the costs of planning and execution. Needs a C compiler."""
    with TemporaryDirectory() as folder:
        native = Path(__file__).parents[3] / "native"
        timing, cache = Path(folder) / "timing", Path(folder) / "cache.sqlite"
        compile_c(Path(__file__).with_name("graph_timing.c"), timing, f"-I{native}")
        environment = {
            "MUCUDNN_MODE": "online",
            "MUCUDNN_CACHE": str(cache),
            "MUCUDNN_WORKSPACE_LIMIT": "none",
        }

        def command(what: str, *numbers: int) -> list[str]:
            return [str(timing), what, *map(str, numbers), host_library(), str(shim_path())]

        def warm(kernels: int, samples: int, time: Callable[[int, str], float]) -> None:
            every_row = {**environment, "MUCUDNN_MEASURING": "thorough"}
            run_timing(*command("plans", kernels, samples, 1), **every_row)
            set_times(cache.with_name(f"{cache.name}.journal"), time)

        def execution(case: str, metric: str, samples: int, micro_batch: int) -> Record:
            calls = command("calls", ROUNDS, samples, micro_batch)
            return compare("graph", case, metric, "ns", 1.0, *calls, **environment)

        records = []
        warm(KERNELS, SAMPLES, _best_at_16)
        journal = cache.with_name(f"{cache.name}.journal").stat().st_size
        plans = run_timing(*command("plans", KERNELS, SAMPLES, TIMES), **environment)
        cases = {
            "whose kernel the process meets": plans[1:KERNELS],
            "whose kernel is known": plans[KERNELS:],
            f"that reads the journal of {journal >> 10} KiB": plans[:1],
        }
        for case, rounds in cases.items():
            case = f"Finalize of a plan, forward, {case}"
            records.append(figure("graph", case, "planning cost", "µs", 1e3, rounds))
        warm(1, FEW, _own_is_best)
        records.append(execution("left undivided", "cost of an execution", FEW, FEW))
        warm(1, SLICES, _samples_are_best)
        records.append(execution(f"{SLICES} slices against a loop of our own", "cost of a slice", SLICES, 1))
        return records


def _best_at_16(size: int, algorithm: str) -> float:
    """Return a time by which the drop-in chooses six slices of 16 and one of 4, by another engine."""
    slow = 8.0 if not algorithm.startswith("eng") else 4.0 if algorithm == OWN_ENGINE else 1.0
    return slow * (1 + (size / 16) ** 2)


def _own_is_best(size: int, algorithm: str) -> float:
    return math.sqrt(size) * (1.0 if algorithm == OWN_ENGINE else 100.0)


def _samples_are_best(size: int, algorithm: str) -> float:
    return size**2 * (1.0 if algorithm == OWN_ENGINE else 100.0)
