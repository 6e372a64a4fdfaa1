"""`python -m bench.recognised [FOLDER]`: the share of a program's convolutions that the drop-in recognises.

The programs are cudnn-frontend's Python module on the host engine and, in FOLDER, PyTorch's CUDA build with
the stand-in for CUDA (tests/gpu/stand_in/build.py). The drop-in only records, so nothing is measured or
divided. A call counts as recognised if the drop-in could divide it. Spatial sizes are cut, so that a CPU is
fast enough: the form of a call decides, not its size.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from importlib import metadata
from pathlib import Path
from typing import Any

import scipy_openblas32
from rich.console import Console

from bench.record import RESULTS, Record, describe_machine, show, update
from mucudnn._native import cudart_library, host_library
from mucudnn.problems.kernels import Flags, Kernel, read_kernels

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

    A cut is a multiple of the stride. A stride that leaves a remainder still does: XLA's gradients differ there.
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


def options_of(kernel: Kernel) -> dict[str, Any]:
    """Return the options of a framework's convolution, in its order."""
    problem = kernel.problem
    return {
        "stride": list(problem.stride),
        "padding": list(problem.padding),
        "dilation": list(problem.dilation),
        "groups": problem.groups,
    }


def main() -> None:
    """Measure each network in a process of its own, and write the records."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", help="PyTorch's CUDA build with the stand-in")
    parser.add_argument("--only", default=",".join(NETWORKS), help="networks, with commas between")
    arguments = parser.parse_args()
    networks = arguments.only.split(",")
    with tempfile.TemporaryDirectory() as scratch:
        version = metadata.version("nvidia-cudnn-frontend")
        records = _measure(
            f"cudnn-frontend {version}", "recognised_frontend.py", networks, _host_engine(Path(scratch))
        )
    if arguments.folder:
        folder = arguments.folder.resolve()
        name = f"PyTorch {_version_of_pytorch(folder)}"
        records += _measure(name, "recognised_torch.py", networks, _pytorch(folder))
    show(Console(), records)
    if networks == list(NETWORKS) and arguments.folder:
        machine = describe_machine(device="none: the program runs on the CPU", library="mucudnn-host")
        update(RESULTS / "recognised.jsonl", machine, records)


def _measure(name: str, program: str, networks: list[str], variables: dict[str, str]) -> list[Record]:
    records, total = [], Counter[str]()
    for network in networks:
        calls = count_calls(_run(Path(__file__).with_name(program), network, variables))
        records.append(_record(f"{name}: {network}", calls))
        total += calls
    return [*records, _record(f"{name}: all", total)]


def _host_engine(folder: Path) -> dict[str, str]:
    """Return the variables under which a program finds the host engine as cuDNN, by a link in `folder`."""
    (folder / "libcudnn.so.9").symlink_to(host_library())
    folders = (folder, scipy_openblas32.get_lib_dir(), Path(cudart_library()).parent)
    return {"LD_LIBRARY_PATH": ":".join(map(str, folders))}


def _pytorch(folder: Path) -> dict[str, str]:
    runtimes = [folder / "nvidia" / name / "lib" for name in ("cu13", "cuda_runtime")]
    found = [str(path) for path in runtimes if path.is_dir()]
    return {"LD_LIBRARY_PATH": ":".join(found), "PYTHONPATH": str(folder)}


def _version_of_pytorch(folder: Path) -> str:
    version = re.search(r"__version__ = '(.*)'", (folder / "torch" / "version.py").read_text())
    if version is None:
        sys.exit(f"{folder} holds no PyTorch")
    return version[1]


def _run(program: Path, network: str, variables: dict[str, str]) -> str:
    """Run a network's convolutions under the drop-in, which records. Return what the drop-in logged."""
    packages = filter(None, (variables.get("PYTHONPATH"), str(program.parents[1])))
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
    found = re.search(r"mucudnn: 0 of \d+ convolutions divided, (\d+) passed through \((.*)\)", log)
    if not found:
        return Counter()
    if not re.match(r"\d", found[2]):  # the only reason has no number of its own
        return Counter({found[2]: int(found[1])})
    reasons = re.findall(r"(\d+) (.*?)(?=, \d+ |$)", found[2])
    return Counter({reason: int(calls) for calls, reason in reasons})


def _record(case: str, calls: Counter[str]) -> Record:
    total = calls.total()
    value = 100 * calls[RECORDED] / total if total else None
    others = {reason: number for reason, number in calls.most_common() if reason != RECORDED}
    return Record("recognised", case, METRIC, value, "%", {"calls": total, **others})


if __name__ == "__main__":
    main()
