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
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import mucudnn
import mucudnn.torch
from bench.lib.record import Record
from mucudnn.arrays.call import PassCall
from mucudnn.arrays.devices import device_named
from mucudnn.arrays.dispatch import Prepared, prepared
from mucudnn.problems.kernels import Kernel
from mucudnn.torch.choosing import answers, trials

CALLS, REPEATS = 50, 500
COLD_CALLS = {0: 3000, 8: 1500, 64: 500}  # calls of each layer, by the MiB of memory between two calls
STOCK, LOOKS, LEFT = "PyTorch's own", "looks for its choice", "is left to PyTorch"


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Measure both costs on one thread, with a cache that is empty at first."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"MUCUDNN_CACHE": str(Path(folder) / "cache.sqlite"), "MUCUDNN_BUDGET": "none"}
        yield from overhead()
        yield from cold_calls()


def overhead() -> Iterator[Record]:
    """Yield the µs that each front end adds to a direct call of what it runs, the engine or PyTorch."""
    x, w = torch.randn(2, 3, 8, 8), torch.randn(4, 3, 3, 3)
    arrays = x.numpy(), w.numpy()
    ready = prepared(PassCall("forward", "cpu", "f32", "nchw", x.shape, w.shape, None, 1, 0, 1, 1, None))
    engine_us = _engine_microseconds(ready, x, w)
    yield _overhead("convolution_forward, NumPy", lambda: mucudnn.convolution_forward(*arrays), engine_us)
    yield _overhead("convolution_forward, PyTorch", lambda: mucudnn.convolution_forward(x, w), engine_us)
    # PyTorch's own convolution is usually faster in the first layer, the engine in the second.
    for channels, size in ((16, 16), (64, 28)):
        x, w = torch.randn(1, channels, size, size), torch.randn(channels, channels, 3, 3)
        for gradient, filter_ in (("without", w), ("with", w.clone().requires_grad_())):
            way = partial(mucudnn.torch.conv2d, x, filter_)
            own = _choice_of_conv2d(x, filter_)
            if own is None:
                direct_us = _microseconds(partial(torch.conv2d, x, filter_))
                yield _overhead(f"conv2d that runs PyTorch's own, {gradient} gradient", way, direct_us)
            else:
                direct_us = _engine_microseconds(own, x, w)
                yield _overhead(f"conv2d {gradient} gradient", way, direct_us)


def _choice_of_conv2d(x: torch.Tensor, w: torch.Tensor) -> Prepared | None:
    """Return the division that `conv2d` runs after its decision; None if it runs PyTorch's own."""
    for _ in range(3):  # the last call decides, because calls with and without gradient share a shape of w
        mucudnn.torch.conv2d(x, w)
    key = answers.key_of(x, w, None, None, 2, 1, 0, 1, 1)
    answer = None if key is None else answers.find(key)
    assert answer is not None
    return None if answer.ready is None or answer.ready.stock else answer.ready


def _engine_microseconds(ready: Prepared, x: torch.Tensor, w: torch.Tensor) -> float:
    """Return the µs of the engine's run of a division."""
    engine, y = device_named("cpu").engine, np.empty(ready.shapes["y"], np.float32)
    division = engine.prepare(Kernel(ready.problem, "forward"), ready.configuration.slices)
    workspace = engine.allocate(max(division.workspace, 1))
    addresses = x.data_ptr(), w.data_ptr(), y.ctypes.data
    return _microseconds(lambda: division.run(*addresses, workspace))


def _overhead(name: str, way: Callable[[], Any], direct_us: float) -> Record:
    cost = _microseconds(way) - direct_us
    return Record("overhead", name, "beyond a direct call", cost, "µs", {"direct_us": direct_us})


def _microseconds(function: Callable[[], Any]) -> float:
    """Return the µs of a call in the fastest of many repeats: other programs slow down the rest."""
    function()
    return min(timeit.repeat(function, number=CALLS, repeat=REPEATS)) / CALLS * 1e6


def cold_calls() -> Iterator[Record]:
    """Yield what two converted layers cost beside an equal one of PyTorch, interleaved."""
    layers = {name: torch.nn.Conv2d(8, 8, 1) for name in (STOCK, LOOKS, LEFT)}
    for name in (LOOKS, LEFT):
        settings: Any = mucudnn.torch.convert(layers[name])._mucudnn
        # The state after the model decided for PyTorch's own, in a step that another layer began.
        settings.comparison._way, settings.comparison.first_layer = trials.STOCK_WAY, 0
        settings.leave_to_pytorch(name == LEFT)
    for mib, calls in COLD_CALLS.items():
        times = _interleave(layers, mib, calls)
        stock = statistics.median(times[STOCK])
        for name in (LOOKS, LEFT):
            cost = statistics.median(times[name]) - stock
            case = f"a layer that {name}, {mib} MiB between two calls"
            details = {"stock_us": stock, "calls": calls}
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
