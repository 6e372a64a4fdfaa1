"""The memory that one call takes beyond its arrays.

usage: python -m bench.suites.core.peak INPUT LIMIT    one call in this process
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import mucudnn
from bench.lib.process import peak_bytes
from bench.lib.record import Record

# One sample each, from an image decoder and from a 3-D U-Net. Input and output have 128 channels.
INPUTS = {"image, 3x3": (1, 128, 512, 512), "volume, 3x3x3": (1, 128, 28, 36, 36)}
LIMITS = ("8MiB", "64MiB", "none")


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Measure each call in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "MUCUDNN_CACHE": str(Path(folder) / "cache.sqlite")}
        for name in INPUTS:
            for limit in LIMITS:
                command = [sys.executable, "-m", "bench.suites.core.peak", name, limit]
                for _ in range(2):  # only the second counts: the first needs memory to measure the kernel
                    done = subprocess.run(
                        command, check=True, capture_output=True, text=True, env=environment
                    )
                mib = int(done.stdout) / 2**20
                yield Record("peak", f"{name}, limit {limit}", "peak beyond the arrays", mib, "MiB")


def call(name: str, limit: str) -> None:
    """Run one call on a warm cache. Print the bytes by which the process's peak memory rises in it."""
    ones = np.ones((1, 1, 8, 8), np.float32)
    mucudnn.convolution_forward(ones, ones, workspace="0")  # loads libraries, whose memory does not count
    x = np.random.default_rng(1).random(INPUTS[name], np.float32)
    w = np.random.default_rng(2).random((128, 128, *[3] * (x.ndim - 2)), np.float32)
    y = np.ones_like(x)
    print(peak_bytes(lambda: mucudnn.convolution_forward(x, w, padding=1, out=y, workspace=limit)))


if __name__ == "__main__":
    call(*sys.argv[1:])
