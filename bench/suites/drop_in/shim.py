"""The drop-in's cost for a program: for a call through a trampoline, and for the program's start.

The timing loops are in `shim_timing.c`. They run without and with the drop-in, interleaved, and a figure is
the median of the differences.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.lib.record import Record
from mucudnn._native import host_library
from mucudnn.drop_in.libraries import shim_path

ROUNDS = 201
FUNCTION = "cudnnGetVersion"  # a function that hardly does anything, so that the trampoline's cost shows


def measure(options: argparse.Namespace) -> list[Record]:
    """Measure the cost of a call and of a start. Needs a C compiler."""
    with TemporaryDirectory() as folder:
        timing, nothing = Path(folder) / "timing", Path(folder) / "nothing"
        compile_c(Path(__file__).with_name("shim_timing.c"), timing)
        nothing.with_suffix(".c").write_text("int main(void) { return 0; }\n")
        compile_c(nothing.with_suffix(".c"), nothing)
        return [
            compare(
                "shim", f"trampoline of {FUNCTION}", "pass-through cost", "ns", 1.0,
                timing, "calls", str(ROUNDS), host_library(), str(shim_path()), FUNCTION,
            ),
            compare(
                "shim", "a program that never calls cuDNN", "start-up cost", "ms", 1e6,
                timing, "starts", str(ROUNDS), str(nothing), f"LD_PRELOAD={shim_path()}",
            ),
        ]  # fmt: skip


def compare(
    theme: str, case: str, metric: str, unit: str, ns: float, *command: str | Path, **environment: str
) -> Record:
    """Run a timing program, and return the drop-in's cost as a record; one `unit` is `ns` nanoseconds."""
    return figure(theme, case, metric, unit, ns, run_timing(*command, **environment))


def figure(
    theme: str, case: str, metric: str, unit: str, ns: float, rounds: list[tuple[float, float]]
) -> Record:
    """Return the median difference of the two times of a round as a record.

    The times are in ns; one `unit` is `ns` nanoseconds.
    """
    alone, through = (statistics.median(side) / ns for side in zip(*rounds, strict=True))
    cost = statistics.median(second - first for first, second in rounds) / ns
    details = {f"alone_{unit}": alone, f"with_{unit}": through, "rounds": len(rounds)}
    return Record(theme, case, metric, cost, unit, details)


def run_timing(*command: str | Path, **environment: str) -> list[tuple[float, float]]:
    """Run a timing program on the host engine. Return its rounds: (ns without the drop-in, ns with it).

    Exits if the program prints an error.
    """
    variables = {**os.environ, "MUCUDNN_LIBRARY": "host", "MUCUDNN_LOG": "warning", **environment}
    answer = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    if answer.stderr:  # such as the loader's warning that it could not preload the drop-in
        raise SystemExit(answer.stderr)
    lines = [line.split() for line in answer.stdout.splitlines()]
    return [(float(alone), float(through)) for alone, through in lines]


def compile_c(source: Path, program: Path, *options: str) -> None:
    """Compile a C program with $CC, or else cc. Exits if there is no compiler."""
    compiler = os.environ.get("CC") or shutil.which("cc")
    if compiler is None:
        raise SystemExit("needs a C compiler: set CC")
    subprocess.run([*compiler.split(), "-O2", *options, source, "-o", program, "-ldl"], check=True)
