"""The share of a program's convolutions that the drop-in recognises.

The program is cudnn-frontend's Python module on the host engine, or the CUDA build of PyTorch, onnxruntime or
JAX in the folder of `--framework`, with the stand-in for CUDA (tests/gpu/stand_in/build.py). The drop-in only
records, so nothing is measured or divided. A call counts as recognised if the drop-in could divide it.
Spatial sizes are cut, so that a CPU is fast enough: the form of a call decides, not its size.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import scipy_openblas32

from bench.lib.record import Record
from mucudnn._native import host_library
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.sources import Flags, read_kernels

NETWORKS = (
    "alexnet", "convnext", "cosmoflow", "deepbench", "image_vae", "resnet18", "resnet50", "unet3d", "vgg16",
    "video_vae",
)  # fmt: skip
METRIC = "share of the convolution calls that are recognised"
RECORDED = "only recorded"  # the drop-in's reason for a call that it could divide
BATCH = 2
MOST = {2: 16, 3: 8}  # the most of a spatial size, by the number of axes


def read_convolutions(network: str) -> list[Kernel]:
    """Return a network's forward kernels."""
    return read_kernels(network, Flags(batch=BATCH), ["forward"])


def shapes_of(kernel: Kernel) -> tuple[list[int], list[int]]:
    """Return the shapes of x and w, with spatial sizes cut to about MOST, at least to the filter's extent.

    A cut is a multiple of the stride, because XLA writes gradients otherwise if a stride leaves a remainder.
    """
    problem = kernel.problem
    extents = [(k - 1) * d + 1 for k, d in zip(problem.kernel, problem.dilation, strict=True)]
    most = MOST[len(problem.kernel)]
    sizes = [
        size - max(0, size - max(most, extent)) // stride * stride
        for size, extent, stride in zip(problem.input, extents, problem.stride, strict=True)
    ]
    x = [problem.mini_batch, problem.in_channels, *sizes]
    return x, [problem.out_channels, problem.in_channels // problem.groups, *problem.kernel]


def output_shape(x: list[int], w: list[int], options: dict[str, Any]) -> list[int]:
    """Return the shape of y for the shapes of x and w."""
    extents = [(size - 1) * dilation + 1 for size, dilation in zip(w[2:], options["dilation"], strict=True)]
    sizes = zip(x[2:], options["padding"], extents, options["stride"], strict=True)
    return [x[0], w[0], *((size + 2 * pad - extent) // stride + 1 for size, pad, extent, stride in sizes)]


def options_of(kernel: Kernel) -> dict[str, Any]:
    """Return the options of a framework's convolution, in its order."""
    problem = kernel.problem
    return {
        "stride": list(problem.stride),
        "padding": list(problem.padding),
        "dilation": list(problem.dilation),
        "groups": problem.groups,
    }


@dataclass(frozen=True)
class Program:
    """A framework, and the program beside this file that makes its convolutions."""

    name: str
    package: str
    file: str
    variables: Mapping[str, str] = field(default_factory=dict)


FRONTEND = Program("cudnn-frontend", "", "recognised_frontend.py")
PROGRAMS = (
    Program("PyTorch", "torch", "recognised_torch.py"),
    Program("onnxruntime-gpu", "onnxruntime_gpu", "recognised_onnxruntime.py"),
    # XLA tries several engines for each convolution, as it does by default. It captures nothing into CUDA
    # graphs, which the stand-in lacks, and its own kernels do nothing.
    Program(
        "JAX",
        "jax",
        "recognised_jax.py",
        {
            "JAX_PLATFORMS": "cuda",
            "JAX_SKIP_CUDA_CONSTRAINTS_CHECK": "1",
            "XLA_FLAGS": "--xla_gpu_autotune_level=1 --xla_gpu_experimental_enable_fusion_autotuner=false "
            "--xla_gpu_enable_command_buffer=",
            "STAND_IN_LEAVES_KERNELS": "1",
        },
    ),
)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the framework to run."""
    parser.add_argument("--framework", type=Path, metavar="FOLDER", help="a CUDA build with the stand-in")


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Measure each network in a process of its own, and all of them together."""
    with tempfile.TemporaryDirectory() as scratch:
        program, version, variables = choose_program(options.framework, Path(scratch))
        bench, total = Path(program.file).stem, Counter[str]()
        for network in NETWORKS:
            calls = count_calls(_run(Path(__file__).with_name(program.file), network, variables))
            total += calls
            yield _record(bench, f"{program.name} {version}: {network}", calls)
        yield _record(bench, f"{program.name} {version}: all", total)


def choose_program(framework: Path | None, scratch: Path) -> tuple[Program, str, dict[str, str]]:
    """Return the program in the folder of a framework, its version, and the variables to run it with.

    Without a framework it is cudnn-frontend's module, with libraries that this function puts into `scratch`.
    """
    if framework is None:
        return FRONTEND, metadata.version("nvidia-cudnn-frontend"), _host_engine(scratch)
    folder = framework.resolve()
    program, version = _program_in(folder)
    return program, version, {**_stand_in(folder), **program.variables}


def _program_in(folder: Path) -> tuple[Program, str]:
    """Return the program whose package is in the folder, and the package's version."""
    versions = {package.name: package.version for package in metadata.distributions(path=[str(folder)])}
    for program in PROGRAMS:
        for name, version in versions.items():
            if name.replace("-", "_") == program.package:
                return program, version
    sys.exit(f"{folder} holds no PyTorch, onnxruntime or JAX")


def _host_engine(folder: Path) -> dict[str, str]:
    """Put the host engine and the tests' CUDA runtime into `folder`, and return the variables for it."""
    (folder / "libcudnn.so.9").symlink_to(host_library())
    root, name = Path(__file__).parents[3], "libcudart.so.13"
    source = root / "tests" / "cudart" / "runtime.cpp"
    options = "-std=c++17", "-O1", "-fPIC", "-shared", f"-Wl,-soname,{name}", f"-I{root / 'native'}"
    subprocess.run(["c++", *options, source, "-o", folder / name], check=True)
    return {"LD_LIBRARY_PATH": f"{folder}:{scipy_openblas32.get_lib_dir()}"}


def _stand_in(folder: Path) -> dict[str, str]:
    libraries = [folder / "nvidia" / name / "lib" for name in ("cu13", "cuda_runtime", "cudnn")]
    path = ":".join(str(path) for path in libraries if path.is_dir())
    return {"LD_LIBRARY_PATH": path, "PYTHONPATH": str(folder)}


def _run(program: Path, network: str, variables: dict[str, str]) -> str:
    """Run a network's convolutions under the drop-in, which records. Return what the drop-in logged."""
    packages = filter(None, (variables.get("PYTHONPATH"), str(program.parents[3])))
    with tempfile.TemporaryDirectory() as scratch:
        environment = {
            **os.environ,
            **variables,
            "PYTHONPATH": ":".join(packages),
            "MUCUDNN_LOG": "info",
            "MUCUDNN_CACHE": f"{scratch}/cache.sqlite",
        }
        record = (sys.executable, "-m", "mucudnn", "record", "--output", f"{scratch}/record", "--")
        command = [*record, sys.executable, str(program), network]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{program.name} {network} ended with {done.returncode}: {done.stderr[-2000:]}")
    return done.stderr


def count_calls(log: str) -> Counter[str]:
    """Return the number of convolution calls by the reason why the drop-in passed them through."""
    line = re.search(r"mucudnn: 0 of \d+ convolutions divided, (\d+) passed through \((.*)\)", log)
    if not line:
        return Counter()
    if not re.match(r"\d", line[2]):  # the only reason has no number of its own
        return Counter({line[2]: int(line[1])})
    reasons = re.findall(r"(\d+) (.*?)(?=, \d+ |$)", line[2])
    return Counter({reason: int(calls) for calls, reason in reasons})


def _record(bench: str, case: str, calls: Counter[str]) -> Record:
    total = calls.total()
    value = 100 * calls[RECORDED] / total if total else None
    others = {reason: number for reason, number in calls.most_common() if reason != RECORDED}
    return Record(bench, case, METRIC, value, "%", {"calls": total, **others})
