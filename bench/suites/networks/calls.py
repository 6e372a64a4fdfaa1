"""The cost of a call: of the array functions and mucudnn.torch, and of a layer that runs PyTorch's own.

The layers are so small that little but the cost shows. Between two calls of a converted layer the program
reads and writes memory, as the other layers of a network do, so that the interpreter's code leaves the
caches.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import tempfile
import time
import timeit
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mucudnn
import mucudnn.torch
from bench.lib.record import Record
from mucudnn.arrays.call import PassCall
from mucudnn.arrays.devices import device_named
from mucudnn.arrays.dispatch import prepared
from mucudnn.problems.kernels import Kernel

CALLS, REPEATS = 50, 500
COLD_CALLS = {0: 3000, 8: 1500, 64: 500}  # calls of each layer, by the MiB of memory between two calls
STOCK, LOOKS, STOCK_CLASS = "PyTorch's own", "looks for its choice", "has PyTorch's own class"


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Measure both costs on one thread, with a cache that is empty at first."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["MUCUDNN_CACHE"] = str(Path(folder) / "cache.sqlite")
        yield from overhead()
        yield from cold_calls()


def overhead() -> Iterator[Record]:
    """Yield the µs that each front end adds to a direct call of the engine with the same division."""
    x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    arrays, parameter = (x.numpy(), w.numpy()), w.clone().requires_grad_()
    ready = prepared(PassCall("forward", "cpu", "f32", "nchw", x.shape, w.shape, None, 1, 0, 1, 1, None))
    engine, y = device_named("cpu").engine, np.empty(ready.shapes["y"], np.float32)
    division = engine.prepare(Kernel(ready.problem, "forward"), ready.configuration.slices)
    workspace = engine.allocate(max(division.workspace, 1))
    addresses = x.data_ptr(), w.data_ptr(), y.ctypes.data
    direct = _microseconds(lambda: division.run(*addresses, workspace))
    details = {"problem": str(ready.problem), "direct_us": direct}
    ways: dict[str, Callable[[], Any]] = {
        "convolution_forward, NumPy": lambda: mucudnn.convolution_forward(*arrays),
        "convolution_forward, PyTorch": lambda: mucudnn.convolution_forward(x, w),
        "mucudnn.torch.conv2d without gradient": lambda: mucudnn.torch.conv2d(x, w),
        "mucudnn.torch.conv2d with gradient": lambda: mucudnn.torch.conv2d(x, parameter),
    }
    for name, way in ways.items():
        cost = _microseconds(way) - direct
        yield Record("overhead", name, "beyond a direct engine call", cost, "µs", details)


def _microseconds(function: Callable[[], Any]) -> float:
    """Return the µs of a call in the fastest of many repeats: other programs slow down the rest."""
    function()
    return min(timeit.repeat(function, number=CALLS, repeat=REPEATS)) / CALLS * 1e6


def cold_calls() -> Iterator[Record]:
    """Yield what two converted layers cost beside an equal one of PyTorch, interleaved."""
    layers = {name: torch.nn.Conv2d(8, 8, 1) for name in (STOCK, LOOKS, STOCK_CLASS)}
    for name in (LOOKS, STOCK_CLASS):
        layer: Any = mucudnn.torch.convert(layers[name])
        settings = layer._mucudnn
        # The state after the model decided for PyTorch's own, in a step that another layer began.
        settings.comparison.is_step_left_to_pytorch, settings.comparison.first_layer = True, 0
        settings.leave_to_pytorch(name == STOCK_CLASS)
    for mib, calls in COLD_CALLS.items():
        times = _interleave(layers, mib, calls)
        stock = statistics.median(times[STOCK])
        for name in (LOOKS, STOCK_CLASS):
            details = {"stock_us": stock, "calls": calls}
            cost = statistics.median(times[name]) - stock
            case = f"a layer that {name}, {mib} MiB between two calls"
            yield Record("cold_calls", case, "cost beside PyTorch's own", cost, "µs", details)


def _interleave(layers: dict[str, torch.nn.Conv2d], mib: int, calls: int) -> dict[str, list[float]]:
    """Return the microseconds of each layer's calls."""
    times: dict[str, list[float]] = {name: [] for name in layers}
    x, others, orders = torch.ones(1, 8, 8, 8), np.zeros(mib * 2**17), random.Random(1)
    neighbour = torch.nn.ReLU()
    with torch.no_grad():
        for _ in range(calls):
            for name in orders.sample(list(layers), len(layers)):
                others += 1
                neighbour(x)  # loads the code that all modules share
                start = time.perf_counter()
                layers[name](x)
                times[name].append((time.perf_counter() - start) * 1e6)
    return times
