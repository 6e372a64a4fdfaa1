"""The calls of large samples that run in tiles under the drop-in, in unmodified programs.

The program is cudnn-frontend's Python module on the host engine, or the CUDA build of PyTorch, onnxruntime or
JAX in the folder of `--framework`, with the stand-in for CUDA (tests/gpu/stand_in/build.py). It runs the
layers of `tiles` with one sample each: alone, within a limit, and with a plan that `mucudnn optimize` makes
of its calls within that limit. mucudnn chooses by time, so another machine has other counts.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import numpy.typing as npt

from bench.lib.record import Record
from bench.suites.core.tiles import LAYERS
from bench.suites.drop_in.recognised import add_options as add_options
from bench.suites.drop_in.recognised import choose_program
from mucudnn._native import Problem, parse_descriptor
from mucudnn.sizes import parse_size

Array = npt.NDArray[np.float32]
Results = Mapping[str, Array]
METRIC = "calls of one large sample in tiles"
HEAD = (
    "program",
    "calls",
    "in tiles",
    "whole, by a faster algorithm",
    "most workspace",
    "largest difference",
)
LIMIT = "2MiB"
MOST_DIFFERENCE = 1e-4  # Winograd's errors are below 1e-5
SUMMARY = re.compile(
    r"mucudnn: (?P<divided>\d+) of (?P<calls>\d+) convolutions divided(?:, (?P<tiles>\d+) of them in tiles)?"
    r"(?:, (?P<faster>\d+) by a faster algorithm)?.*, workspace at most (?P<workspace>[\d.]+ \w+)"
)


def read_layers() -> list[Problem]:
    """Return the layers."""
    return [parse_descriptor(f"mb1_{layer}")[0] for layer in LAYERS]


def make_operands(problem: Problem) -> tuple[Array, Array, Array]:
    """Return x, w and a gradient of y, which are the same in each process."""
    generator = np.random.default_rng(1)
    shapes = (
        (1, problem.in_channels, *problem.input),
        (problem.out_channels, problem.in_channels, *problem.kernel),
        (1, problem.out_channels, *problem.output),
    )
    x, w, y = (generator.standard_normal(shape, np.float32) for shape in shapes)
    return x, w, y


def run_layers(run: Callable[[Problem], Results]) -> None:
    """Run all layers by a framework's function, and save the results in the file of the command line."""
    results = {
        f"{problem} {name}": array for problem in read_layers() for name, array in run(problem).items()
    }
    np.savez(sys.argv[1], **results)  # type: ignore[arg-type]  # none is named `allow_pickle`


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Count the calls in tiles without and with a plan."""
    with TemporaryDirectory() as scratch:
        program, version, variables = choose_program(options.framework, Path(scratch))
        # XLA's own kernels, which would change the layout, do nothing on the stand-in.
        variables["XLA_FLAGS"] = f"{variables.get('XLA_FLAGS', '')} --xla_gpu_force_conv_nchw"
        file = Path(__file__).with_name(program.file.replace("recognised", "large_samples"))
        engine = "cudnn" if options.framework else "host"
        runs = _Runs(file, variables, Path(scratch))
        alone = runs.load(*runs.program)
        calls, plan = f"{scratch}/calls", f"{scratch}/plan"
        within = ("--workspace", LIMIT)
        runs.mucudnn("record", "--output", calls, "--", *runs.program)
        runs.mucudnn("optimize", calls, "--engine", engine, "--passes", "all", *within, "--output", plan)
        for name, flags in ((f"within {LIMIT}", within), ("with a plan", ("--plan", plan))):
            results = runs.load(*runs.command("run", *flags, "--", *runs.program))
            yield make_record(f"{program.name} {version}, {name}", runs.log, difference_of(results, alone))


@dataclass
class _Runs:
    """Runs of a framework's program. `log` is the standard error of the last one."""

    file: Path
    variables: dict[str, str]
    scratch: Path
    log: str = ""

    @property
    def program(self) -> tuple[str, ...]:
        return sys.executable, str(self.file), str(self.scratch / "results.npz")

    def command(self, *words: str) -> tuple[str, ...]:
        return sys.executable, "-m", "mucudnn", *words

    def mucudnn(self, *words: str) -> None:
        self._run(*self.command(*words))

    def load(self, *command: str) -> dict[str, Array]:
        """Run a command that runs the program, and return the program's results."""
        self._run(*command)
        with np.load(self.scratch / "results.npz") as results:
            return dict(results)

    def _run(self, *command: str) -> None:
        packages = filter(None, (self.variables.get("PYTHONPATH"), str(self.file.parents[3])))
        environment = {
            **os.environ,
            **self.variables,
            "PYTHONPATH": ":".join(packages),
            "MUCUDNN_CACHE": str(self.scratch / "cache.sqlite"),
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)} ended with {done.returncode}: {done.stderr[-2000:]}")
        self.log = done.stderr


def difference_of(results: Results, expected: Results) -> float:
    """Return the largest difference of a result, relative to the result by norms."""
    if results.keys() != expected.keys():
        sys.exit("the program has other results under the drop-in")
    return max(
        float(np.linalg.norm(results[name] - array) / np.linalg.norm(array))
        for name, array in expected.items()
    )


def make_record(case: str, log: str, difference: float) -> Record:
    """Return the record of a run from the drop-in's last line. Exit if the run broke a promise."""
    line = SUMMARY.search(log)
    if line is None:
        sys.exit(f"{case}: no convolution was divided: {log[-2000:]}")
    if parse_size(line["workspace"]) > parse_size(LIMIT) or not difference <= MOST_DIFFERENCE:
        sys.exit(f"{case}: {line['workspace']} of workspace, results that differ by {difference:.1e}")
    calls, tiles, faster = (int(line[name] or 0) for name in ("calls", "tiles", "faster"))
    details = {"calls": calls, "faster": faster, "workspace": line["workspace"], "difference": difference}
    return Record("large_samples", case, METRIC, tiles, "calls", details)


def table_rows(records: Iterable[Record]) -> Iterator[tuple[str, ...]]:
    """Yield a row of the table for each record."""
    for record in records:
        own = record.details
        counts = map(str, (own["calls"], f"{record.value:.0f}", own["faster"], own["workspace"]))
        yield (record.case, *counts, f"{own['difference']:.0e}")
