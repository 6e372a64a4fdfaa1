"""The cost of a converted layer in a step in which PyTorch's own convolutions run.

Between two calls the program reads and writes memory, so that the interpreter's code leaves the caches. In a
network the other layers do so. The layer is so small that little but the cost shows.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

import mucudnn.torch
from bench.lib.host import describe_host
from bench.lib.record import Machine, Record

CALLS = {0: 3000, 8: 1500, 64: 500}  # calls of each layer, by the MiB of memory between two calls
STOCK, LOOKS, SHORT = "PyTorch's own", "looks for its choice", "takes the short way"


def describe() -> Machine:
    """Return the description of this machine with its engine and PyTorch."""
    return describe_host(torch=torch.__version__)


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Measure calls of three equal layers, interleaved, on one thread."""
    torch.set_num_threads(1)
    layers = {name: torch.nn.Conv2d(8, 8, 1) for name in (STOCK, LOOKS, SHORT)}
    for name in (LOOKS, SHORT):
        layer: Any = mucudnn.torch.convert(layers[name])
        chosen = layer._mucudnn
        # So a layer finds its judge after a verdict for PyTorch's own, if another layer begins the step.
        chosen.judge.has_given_step, chosen.judge.leader = True, 0
        chosen.give(name == SHORT)
    for mib, calls in CALLS.items():
        times = _interleave(layers, mib, calls)
        stock = statistics.median(times[STOCK])
        for name in (LOOKS, SHORT):
            details = {"stock_us": stock, "calls": calls}
            cost = statistics.median(times[name]) - stock
            case = f"a layer that {name}, {mib} MiB between two calls"
            yield Record("cold_calls", case, "cost beside PyTorch's own", cost, "us", details)


def _interleave(layers: dict[str, torch.nn.Conv2d], mib: int, calls: int) -> dict[str, list[float]]:
    """Return the microseconds of each layer's calls."""
    times: dict[str, list[float]] = {name: [] for name in layers}
    x, others, orders = torch.ones(1, 8, 8, 8), np.zeros(mib * 2**17), random.Random(1)
    neighbour = torch.nn.ReLU()
    with torch.no_grad():
        for _ in range(calls):
            for name in orders.sample(list(layers), len(layers)):
                others += 1
                neighbour(x)  # the code that all modules share is there
                start = time.perf_counter()
                layers[name](x)
                times[name].append((time.perf_counter() - start) * 1e6)
    return times
