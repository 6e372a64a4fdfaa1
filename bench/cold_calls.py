"""`python -m bench.cold_calls`: what a converted layer costs in steps of PyTorch's own.

Between two calls the program reads and writes memory, so that the interpreter's code leaves the caches. In a
network the other layers do so. The layer is so small that little but the cost shows.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console

import mucudnn.torch
from bench.openblas import without_openblas_environment
from bench.record import RESULTS, Record, describe_machine, show, update

FILE = RESULTS / "rows" / "cold_calls.jsonl"
CALLS = {0: 3000, 8: 1500, 64: 500}  # calls of each layer, by the MiB of memory between two calls
STOCK, LOOKS, SHORT = "PyTorch's own", "looks for its choice", "takes the short way"


def run() -> list[Record]:
    """Measure calls of three equal layers in turns, on one thread."""
    torch.set_num_threads(1)
    layers = {name: torch.nn.Conv2d(8, 8, 1) for name in (STOCK, LOOKS, SHORT)}
    for name in (LOOKS, SHORT):
        layer: Any = mucudnn.torch.convert(layers[name])
        chosen = layer._mucudnn
        # So a layer finds its judge after a verdict for PyTorch's own, if another layer begins the step.
        chosen.judge.has_given_step, chosen.judge.leader = True, 0
        chosen.give(name == SHORT)
    records = []
    for mib, calls in CALLS.items():
        times = _in_turns(layers, mib, calls)
        stock = statistics.median(times[STOCK])
        for name in (LOOKS, SHORT):
            details = {"stock_us": stock, "calls": calls}
            cost = statistics.median(times[name]) - stock
            case = f"a layer that {name}, {mib} MiB between two calls"
            records.append(Record("cold_calls", case, "cost beside PyTorch's own", cost, "us", details))
    return records


def _in_turns(layers: dict[str, torch.nn.Conv2d], mib: int, calls: int) -> dict[str, list[float]]:
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


def main() -> None:
    """Measure the calls, and write the figures."""
    without_openblas_environment()
    parser = argparse.ArgumentParser(prog="python -m bench.cold_calls", description=__doc__)
    parser.add_argument("--output", type=Path, default=FILE, help="file for the records")
    arguments = parser.parse_args()
    records = run()
    update(arguments.output, describe_machine(torch=torch.__version__), records)
    show(Console(width=110), records)


if __name__ == "__main__":
    main()
