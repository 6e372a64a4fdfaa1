"""`python -m bench.peak`: measure the memory that one call takes beyond its arrays, into `peak.jsonl`."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from rich.console import Console

import mucudnn
from bench.openblas import without_openblas_environment
from bench.record import RESULTS, Record, describe_machine, show, write
from mucudnn.arrays.devices import device_named

# One sample each, from an image decoder and from a 3-D U-Net. Input and output have 128 channels.
INPUTS = {"image, 3x3": (1, 128, 512, 512), "volume, 3x3x3": (1, 128, 28, 36, 36)}
LIMITS = ("8MiB", "64MiB", "none")


def call(name: str, limit: str) -> None:
    """Run one call on a warm cache. Print the bytes by which the process's peak memory rises in it."""
    ones = np.ones((1, 1, 8, 8), np.float32)
    mucudnn.convolution_forward(ones, ones, workspace="0")  # loads libraries, whose memory does not count
    x = np.random.default_rng(1).random(INPUTS[name], np.float32)
    w = np.random.default_rng(2).random((128, 128, *[3] * (x.ndim - 2)), np.float32)
    y = np.ones_like(x)
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM, the peak
    before = _status("VmRSS")
    mucudnn.convolution_forward(x, w, padding=1, out=y, workspace=limit)
    print(_status("VmHWM") - before)


def _status(field: str) -> int:
    """Return the bytes in a field of /proc/self/status."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(f"{field}:")).split()[1]) * 1024


def main() -> None:
    """Measure each call in a process of its own, print the records and write them."""
    without_openblas_environment()
    parser = argparse.ArgumentParser(prog="python -m bench.peak", description=__doc__)
    parser.add_argument("--call", nargs=2, metavar=("INPUT", "LIMIT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.call:
        call(*arguments.call)
        return
    engine, records = device_named("cpu").engine, []
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MUCUDNN_CACHE"] = str(Path(folder) / "cache.sqlite")
        for name in INPUTS:
            for limit in LIMITS:
                command = [sys.executable, "-m", "bench.peak", "--call", name, limit]
                for _ in range(2):  # only the second counts: the first needs memory to measure the kernel
                    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
                case = f"{name}, limit {limit}"
                records.append(Record("peak", case, "peak beyond the arrays", int(output) / 2**20, "MiB"))
    show(Console(width=110), records)
    write(RESULTS / "peak.jsonl", describe_machine(device=engine.device, library=engine.library), records)


if __name__ == "__main__":
    main()
