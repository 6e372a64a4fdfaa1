"""What the drop-in costs in the graph API with a warm journal: an execution plan, its memory, its executions.

The loops are C, `graph_timing.c`, on the host engine and convolutions so small that the cost can be seen.
The drop-in itself measures the journal; then its times are set, so that it decides as a figure needs it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from rich.console import Console

from bench.record import Record, show
from bench.shim import compare, compile_c, figure, pairs
from mucudnn._native import host_library
from mucudnn.drop_in.libraries import shim_path

KERNELS, TIMES = 64, 100
SAMPLES = 100  # of a mini-batch to plan, which is no power of two
FEW, SLICES = 4, 64  # of one to execute undivided and divided
ROUNDS = 101
PASSES = ("forward", "backward_filter")  # the latter's slices after the first have plans of their own
OWN = "eng0"  # the engine of graph_timing.c
PREPARED = 4  # plans that are made for one by the times of `_best_at_16`


def run() -> list[Record]:
    """Measure. Needs a C compiler."""
    with TemporaryDirectory() as folder:
        native = Path(__file__).parents[1] / "native"
        timing, cache = Path(folder) / "timing", Path(folder) / "cache.sqlite"
        compile_c(Path(__file__).with_name("graph_timing.c"), timing, f"-I{native}")
        environment = {
            "MUCUDNN_MODE": "online",
            "MUCUDNN_CACHE": str(cache),
            "MUCUDNN_WORKSPACE_LIMIT": "none",
        }

        def command(what: str, pass_: str, *numbers: int) -> list[str]:
            return [str(timing), what, pass_, *map(str, numbers), host_library(), str(shim_path())]

        def warm(pass_: str, kernels: int, samples: int, time: Callable[[int, str], float]) -> None:
            pairs(*command("plans", pass_, kernels, samples, 1), **environment)
            set_times(cache.with_name(f"{cache.name}.journal"), time)

        def execution(case: str, metric: str, samples: int, micro_batch: int) -> Record:
            calls = command("calls", "forward", ROUNDS, samples, micro_batch)
            return compare("graph", case, metric, "ns", 1.0, *calls, **environment)

        records = []
        for pass_ in PASSES:
            warm(pass_, KERNELS, SAMPLES, _best_at_16)
            journal = cache.with_name(f"{cache.name}.journal").stat().st_size
            plans = pairs(*command("plans", pass_, KERNELS, SAMPLES, TIMES), **environment)
            cases = {
                "whose kernel the process meets": plans[1:KERNELS],
                "whose kernel is known": plans[KERNELS:],
                f"that reads the journal of {journal >> 10} KiB": plans[:1],
            }
            for case, rounds in cases.items():
                case = f"Finalize of a plan, {pass_}, {case}"
                records.append(figure("graph", case, "planning cost", "us", 1e3, rounds))
        for pass_ in PASSES:
            warm(pass_, KERNELS, SAMPLES, _best_at_16)
            memory = command("memory", pass_, KERNELS, SAMPLES, 0)
            (_, prepared), (_, kept) = pairs(*memory, **environment)
            warm(pass_, KERNELS, SAMPLES, _own_is_best)
            (own, known), _ = pairs(*memory, **environment)
            figures = {
                f"the program's own plan, {pass_}": own,
                f"a plan made for one, {pass_}": (prepared - known) / PREPARED,
                f"what a plan knows of its kernel, {pass_}": known - own,
                f"what stays of a kernel without a plan, {pass_}": kept,
            }
            records += [Record("graph", case, "memory", value, "bytes") for case, value in figures.items()]
        warm("forward", 1, FEW, _own_is_best)
        records.append(execution("left undivided", "cost of an execution", FEW, FEW))
        warm("forward", 1, SLICES, _samples_are_best)
        records.append(execution(f"{SLICES} slices against a loop of our own", "cost of a slice", SLICES, 1))
        return records


def set_times(journal: Path, time: Callable[[int, str], float]) -> None:
    """Replace what was measured in a journal by times in ms of a micro-batch size and an algorithm."""

    def changed(match: re.Match[str]) -> str:
        size, algorithm = int(match[1]), match[2]
        return f"1*{size}:{algorithm}:{time(size, algorithm)}:"

    journal.write_text(re.sub(r"1\*(\d+):([^:]+):[^:]+:", changed, journal.read_text()))


def _best_at_16(size: int, algorithm: str) -> float:
    """Six slices of 16 and one of 4, of engines.

    Each size takes two plans: in `forward` of an engine with workspace, and of our own for want of it; in
    `backward_filter`, of one that needs none, for the first slice and for those that add to it.
    """
    slow = 8.0 if not algorithm.startswith("eng") else 4.0 if algorithm == OWN else 1.0
    return slow * (1 + (size / 16) ** 2)


def _own_is_best(size: int, algorithm: str) -> float:
    return math.sqrt(size) * (1.0 if algorithm == OWN else 100.0)


def _samples_are_best(size: int, algorithm: str) -> float:
    return size**2 * (1.0 if algorithm == OWN else 100.0)


if __name__ == "__main__":
    show(Console(width=110), run())
