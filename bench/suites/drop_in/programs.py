"""Unmodified programs under the drop-in: the convolutions that it recognises, and large samples in tiles.

The program is cudnn-frontend's Python module on the host engine, or the CUDA build of PyTorch or onnxruntime
in the folder of `--framework`, with the stand-in for CUDA (tests/gpu/stand_in/build.py). A client, the module
`client_NAME`, runs problems.

- `recognised`: the convolutions of ten networks, in the types and layouts of the program. The drop-in only
  records, and a call counts as recognised if the drop-in could divide it. Spatial sizes are cut, so that a
  CPU is fast enough: the form of a call decides, not its size.
- `large_samples`: the layers of `tiles` with one sample each, alone, within a limit, and with a plan that
  `mucudnn optimize` makes of its calls within that limit. mucudnn chooses by time, so another machine has
  other counts.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import scipy_openblas32

from bench.lib.record import Record
from bench.suites.core.tiles import LAYERS
from bench.suites.drop_in.client import Results
from mucudnn._native import Problem, host_library
from mucudnn.problems.sources import Flags, read_kernels
from mucudnn.sizes import parse_size

ROOT = Path(__file__).parents[3]
NETWORKS = (
    "alexnet", "convnext", "cosmoflow", "deepbench", "image_vae", "resnet18", "resnet50", "unet3d", "vgg16",
    "video_vae",
)  # fmt: skip
SHARE = "share of the convolution calls that are recognised"
RECORDED = "only recorded"  # the drop-in's reason for a call that it could divide
BATCH = 2
MOST = {2: 16, 3: 8}  # the most of a spatial size, by the number of axes
TILED = "calls of one large sample in tiles"
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
EVERY_FORM = tuple((type_, layout) for type_ in ("f32", "f16") for layout in ("nchw", "nhwc"))


@dataclass(frozen=True)
class Program:
    """A framework, the name of its client, and the types and layouts of its convolutions."""

    name: str
    package: str
    client: str
    forms: tuple[tuple[str, str], ...] = EVERY_FORM


FRONTEND = Program("cudnn-frontend", "", "frontend")
PROGRAMS = (
    Program("PyTorch", "torch", "torch"),
    Program("onnxruntime-gpu", "onnxruntime_gpu", "onnxruntime", (("f32", "nchw"), ("f16", "nchw"))),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the framework to run."""
    parser.add_argument("--framework", type=Path, metavar="FOLDER", help="a CUDA build with the stand-in")


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Yield the share of recognised calls, or the time that tiles save, in one framework."""
    with TemporaryDirectory() as scratch:
        client = _Client(options.framework, Path(scratch))
        yield from measure_recognised(client) if options.program == "recognised" else measure_tiles(client)


class _Client:
    """A program that runs problems. `log` is the standard error of its last run."""

    def __init__(self, framework: Path | None, scratch: Path) -> None:
        self.program, self.version, self.variables = _choose_program(framework, scratch)
        self.engine = "cudnn" if framework else "host"
        self.scratch, self.log = scratch, ""

    @property
    def case(self) -> str:
        """The name of the program and its version."""
        return f"{self.program.name} {self.version}"

    def command(self, problems: Iterable[object]) -> tuple[str, ...]:
        """Return the command that runs problems, which may be descriptors."""
        file = Path(__file__).with_name(f"client_{self.program.client}.py")
        return sys.executable, str(file), str(self.scratch / "results.npz"), *map(str, problems)

    def mucudnn(self, *words: str) -> None:
        """Run a command of mucudnn."""
        self.run(sys.executable, "-m", "mucudnn", *words)

    def run(self, *command: str) -> None:
        """Run a command; exit if it fails."""
        packages = filter(None, (self.variables.get("PYTHONPATH"), str(ROOT)))
        environment = {
            **os.environ,
            **self.variables,
            "PYTHONPATH": ":".join(packages),
            "MUCUDNN_LOG": "info",
            "MUCUDNN_CACHE": str(self.scratch / "cache.sqlite"),
        }
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            sys.exit(f"{' '.join(command)[:400]} ended with {done.returncode}: {done.stderr[-2000:]}")
        self.log = done.stderr

    def results(self) -> dict[str, np.ndarray]:
        """Return what the last run saved."""
        with np.load(self.scratch / "results.npz") as results:
            return dict(results)


def _choose_program(framework: Path | None, scratch: Path) -> tuple[Program, str, dict[str, str]]:
    """Return the program in the folder of a framework, its version, and the variables to run it with.

    Without a framework it is cudnn-frontend's module, with the host engine and the tests' CUDA runtime, which
    this function puts into `scratch`.
    """
    if framework is None:
        name = "libcudart.so.13"
        (scratch / "libcudnn.so.9").symlink_to(host_library())
        options = "-std=c++17", "-O1", "-fPIC", "-shared", f"-Wl,-soname,{name}", f"-I{ROOT / 'native'}"
        source = ROOT / "tests" / "cudart" / "runtime.cpp"
        subprocess.run(["c++", *options, source, "-o", scratch / name], check=True)
        path = f"{scratch}:{scipy_openblas32.get_lib_dir()}"
        return FRONTEND, metadata.version("nvidia-cudnn-frontend"), {"LD_LIBRARY_PATH": path}
    folder = framework.resolve()
    versions = {
        package.name.replace("-", "_"): package.version
        for package in metadata.distributions(path=[str(folder)])
    }
    program = next((program for program in PROGRAMS if program.package in versions), None)
    if program is None:
        sys.exit(f"{folder} holds neither PyTorch nor onnxruntime")
    libraries = [folder / "nvidia" / name / "lib" for name in ("cu13", "cuda_runtime", "cudnn")]
    path = ":".join(str(library) for library in libraries if library.is_dir())
    variables = {"LD_LIBRARY_PATH": path, "PYTHONPATH": str(folder)}
    return program, versions[program.package], variables


def measure_recognised(client: _Client) -> Iterator[Record]:
    """Yield the share of recognised calls of each network in a process of its own, and of all together."""
    total = Counter[str]()
    for network in NETWORKS:
        problems = [problem for form in client.program.forms for problem in read_problems(network, *form)]
        record = str(client.scratch / f"{network}.record")
        client.mucudnn("run", "--record", record, "--", *client.command(problems))
        calls = count_calls(client.log)
        total += calls
        yield _share(client, network, calls)
    yield _share(client, "all", total)


def read_problems(network: str, data_type: str, layout: str) -> list[Problem]:
    """Return a network's convolutions with their spatial sizes cut to about MOST.

    A size is at least the filter's extent. A cut is a multiple of the stride, because XLA writes gradients
    otherwise if a stride leaves a remainder.
    """
    problems = []
    for kernel in read_kernels(network, Flags(BATCH, data_type, layout), ["forward"]):
        p = kernel.problem
        extents = [(k - 1) * d + 1 for k, d in zip(p.kernel, p.dilation, strict=True)]
        sizes = [
            size - max(0, size - max(MOST[p.dims], extent)) // stride * stride
            for size, extent, stride in zip(p.input, extents, p.stride, strict=True)
        ]
        cut = Problem(
            mini_batch=p.mini_batch, in_channels=p.in_channels, out_channels=p.out_channels, input=sizes,
            kernel=p.kernel, stride=p.stride, padding=p.padding, dilation=p.dilation, groups=p.groups,
            data_type=data_type, layout=layout,
        )  # fmt: skip
        problems.append(cut)
    return problems


def count_calls(log: str) -> Counter[str]:
    """Return the number of convolution calls by the reason why the drop-in passed them through."""
    line = re.search(r"mucudnn: 0 of \d+ convolutions divided, (\d+) passed through \((.*)\)", log)
    if not line:
        return Counter()
    if not re.match(r"\d", line[2]):  # the only reason has no number of its own
        return Counter({line[2]: int(line[1])})
    reasons = re.findall(r"(\d+) (.*?)(?=, \d+ |$)", line[2])
    return Counter({reason: int(calls) for calls, reason in reasons})


def _share(client: _Client, network: str, calls: Counter[str]) -> Record:
    total = calls.total()
    value = 100 * calls[RECORDED] / total if total else None
    others = {reason: number for reason, number in calls.most_common() if reason != RECORDED}
    bench = f"recognised_{client.program.client}"
    return Record(bench, f"{client.case}: {network}", SHARE, value, "%", {"calls": total, **others})


def measure_tiles(client: _Client) -> Iterator[Record]:
    """Count the calls in tiles without and with a plan."""
    command = client.command(f"mb1_{layer}" for layer in LAYERS)
    client.run(*command)
    alone = client.results()
    calls, plan = str(client.scratch / "calls"), str(client.scratch / "plan")
    within = ("--workspace", LIMIT)
    client.mucudnn("run", "--record", calls, "--", *command)
    client.mucudnn("optimize", calls, "--engine", client.engine, *within, "--output", plan)
    for name, flags in ((f"within {LIMIT}", within), ("with a plan", ("--plan", plan))):
        client.mucudnn("run", *flags, "--", *command)
        difference = difference_of(client.results(), alone)
        yield make_record(f"{client.case}, {name}", client.log, difference)


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
    return Record("large_samples", case, TILED, tiles, "calls", details)


def table_rows(records: Iterable[Record]) -> Iterator[tuple[str, ...]]:
    """Yield a table row for each record of the program `large_samples`."""
    for record in records:
        own = record.details
        counts = map(str, (own["calls"], f"{record.value:.0f}", own["faster"], own["workspace"]))
        yield (record.case, *counts, f"{own['difference']:.0e}")
