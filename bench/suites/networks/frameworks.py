"""The array functions and mucudnn.torch: what a call costs, and training steps against stock PyTorch."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import timeit
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mucudnn
import mucudnn.torch
from bench.lib.host import describe_host
from bench.lib.record import Machine, Record
from mucudnn.arrays.call import Call
from mucudnn.arrays.devices import device_named
from mucudnn.arrays.dispatch import prepared
from mucudnn.problems.kernels import Kernel

THEMES = ("overhead", "resnet18", "unet3d", "volume", "threads")
LIMITS = ("8MiB", "64MiB")  # the theme `volume` has no limit too, for comparison with its tiles
CALLS, REPEATS = 50, 500


def describe() -> Machine:
    """Return the description of this machine with its engine and PyTorch."""
    return describe_host(torch=torch.__version__)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the themes."""
    parser.add_argument("--only", nargs="+", choices=THEMES, default=THEMES, help="these themes alone")


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Measure the themes that are asked for, with one cache that is empty at first."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MUCUDNN_CACHE"] = str(Path(folder) / "cache.sqlite")
        for theme in options.only:
            yield from measured(theme)


def overhead() -> list[Record]:
    """Return the µs that each front end adds to a direct call of the engine with the same division."""
    x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    arrays, parameter = (x.numpy(), w.numpy()), w.clone().requires_grad_()
    ready = prepared(Call("forward", "cpu", "f32", "nchw", x.shape, w.shape, None, 1, 0, 1, 1, None))
    engine, y = device_named("cpu").engine, np.empty(ready.shapes["y"], np.float32)
    division = engine.prepare(Kernel(ready.problem, "forward"), ready.configuration.slices)
    workspace = engine.allocate(max(division.workspace, 1))
    addresses = x.data_ptr(), w.data_ptr(), y.ctypes.data
    direct = _microseconds(lambda: division.run(*addresses, workspace))
    ways: dict[str, Callable[[], Any]] = {
        "convolution_forward, NumPy": lambda: mucudnn.convolution_forward(*arrays),
        "convolution_forward, PyTorch": lambda: mucudnn.convolution_forward(x, w),
        "mucudnn.torch.conv2d without gradient": lambda: mucudnn.torch.conv2d(x, w),
        "mucudnn.torch.conv2d with gradient": lambda: mucudnn.torch.conv2d(x, parameter),
    }
    details = {"problem": str(ready.problem), "direct_us": direct}
    return [
        Record("overhead", name, "beyond a direct engine call", _microseconds(way) - direct, "µs", details)
        for name, way in ways.items()
    ]


def _microseconds(function: Callable[[], Any]) -> float:
    """Return the µs of a call in the fastest of many repeats: other programs slow down the rest."""
    function()
    return min(timeit.repeat(function, number=CALLS, repeat=REPEATS)) / CALLS * 1e6


def measured(theme: str) -> list[Record]:
    """Return the figures of a theme."""
    if theme == "overhead":
        return overhead()
    if theme == "threads":
        cores = os.cpu_count() or 1
        return [record for name in ("resnet18", "unet3d") for record in training(name, LIMITS[1:], cores)]
    return training(theme, (*LIMITS, "none") if theme == "volume" else LIMITS)


def training(name: str, limits: Sequence[str], threads: int = 1) -> list[Record]:
    """Compare training steps of a converted network within each limit with steps of stock PyTorch.

    Return speedups and ratios of peak memory. Each network trains in a process of its own.
    """
    stock, records = _step(name, "stock", threads), []
    for limit in limits:
        _step(name, limit, threads)  # fills the cache, so that the next process measures no kernels
        ours = _step(name, limit, threads)
        details = {
            "ms": ours["ms"], "stock_ms": stock["ms"],
            "peak_mib": ours["peak"] / 2**20, "stock_peak_mib": stock["peak"] / 2**20,
            "loss_difference": abs(ours["loss"] - stock["loss"]) / abs(stock["loss"]),
        }  # fmt: skip
        case = f"{name} within {limit}" + (f" on {threads} threads" if threads > 1 else "")
        faster, smaller = stock["ms"] / ours["ms"], ours["peak"] / stock["peak"]
        records.append(Record("training", case, "speedup over stock PyTorch", faster, "ratio", details))
        records.append(Record("training", case, "peak memory of stock PyTorch's", smaller, "ratio", details))
    return records


def _step(name: str, limit: str, threads: int) -> dict[str, float]:
    command = [
        sys.executable,
        "-m",
        "bench.suites.networks.training_step",
        name,
        limit,
        "--threads",
        str(threads),
    ]
    # Freed tensors shall go back to the system at once. By default the C library keeps most of them, and the
    # peak would depend on the order of all allocations.
    environment = {**os.environ, "MALLOC_MMAP_THRESHOLD_": str(2**20)}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if result.returncode:
        raise SystemExit(f"{' '.join(command)} failed:\n{result.stderr}")
    step: dict[str, float] = json.loads(result.stdout)
    return step
