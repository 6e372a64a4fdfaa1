"""The measurements that a race saves by earlier ones, played on recorded times, so without noise.

A network is measured after another one, whose measurements predict which algorithms are far behind, and after
none, with the cost model of the host engine alone. Both are compared with a race of all algorithms.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from bench.lib.record import Record
from bench.suites.core.race import LIMITS, TABLES, Costs, Times, race, read_tables
from mucudnn._native import parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import STOCK, STOCK_SLICE, SUCCESS, Machine, Measurement
from mucudnn.measuring.likely import find_unlikely
from mucudnn.measuring.worklist import Task
from mucudnn.problems.kernels import Kernel

NETWORKS = ("resnet50", "vgg11", "squeezenet1_1", "mobilenet_v2")
KNOWN = "resnet18"
LIMIT = LIMITS["64 MiB"]
MACHINE = Machine("host", "the recorded processor", "the recorded library", 1)
STOCKS = (STOCK, STOCK_SLICE)


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Play the races of each network."""
    for name in NETWORKS:
        network = recorded(name)
        best_ms = sum(costs.count * costs.best_ms(LIMIT, costs.medians) for _, costs in network)
        stock_ms = sum(costs.count * costs.medians[costs.mini_batch, STOCK] for _, costs in network)
        details = {"kernels": len(network), "stock_ms": stock_ms}
        for knowledge in ("nothing", "the model", KNOWN):
            timed, paid_ms, chosen_ms, slowest = play(network, knowledge)
            case = f"{name} after {knowledge}"
            yield Record("known", case, "algorithms timed", timed, "measurements", details)
            yield Record("known", case, "measuring", paid_ms / 1e3, "s", details)
            yield Record("known", case, "choice over the best", chosen_ms / best_ms, "ratio", details)
            yield Record("known", case, "worst kernel over the full race", slowest, "ratio", details)


def play(network: list[tuple[Kernel, Costs]], knowledge: str) -> tuple[int, float, float, float]:
    """Play the races of a network.

    Return the engine's measurements, the ms of all runs, the ms of the choices, and the largest ratio of a
    choice to that of a race which measures all algorithms.
    """
    timed, paid_ms, chosen_ms, slowest = 0, 0.0, 0.0, 1.0
    with Cache.in_memory(Path("none")) as cache:
        if knowledge == KNOWN:
            for kernel, costs in recorded(KNOWN):
                keep(cache, kernel, costs, race(costs, LIMIT)[0])
        for kernel, costs in network:
            reduced = costs if knowledge == "nothing" else likely(cache, kernel, costs)
            measured, ms = race(reduced, LIMIT)
            if knowledge == KNOWN:
                keep(cache, kernel, costs, measured)
            timed += sum(name not in STOCKS for _, name in measured)
            paid_ms += ms
            chosen_ms += costs.count * costs.best_ms(LIMIT, measured)
            full_ms = costs.best_ms(LIMIT, race(costs, LIMIT)[0])
            slowest = max(slowest, costs.best_ms(LIMIT, measured) / full_ms)
    return timed, paid_ms, chosen_ms, slowest


def likely(cache: Cache, kernel: Kernel, costs: Costs) -> Costs:
    """Return the costs without those of unlikely algorithms."""
    bench: Any = SimpleNamespace(engine=SimpleNamespace(kind="host"), cache=cache, machine=MACHINE)
    tasks = [Task(kernel, *key, costs.workspaces[key], "") for key in costs.times if key[1] not in STOCKS]
    unlikely = find_unlikely(bench, kernel, tasks, LIMIT)
    times = {key: times for key, times in costs.times.items() if key[1] not in unlikely}
    return Costs(costs.count, times, costs.workspaces)


def keep(cache: Cache, kernel: Kernel, costs: Costs, measured: Times) -> None:
    """Keep the engine's times of a race."""
    for (size, name), ms in measured.items():
        if name not in STOCKS and math.isfinite(ms):
            cache.add(MACHINE, kernel, Measurement(size, name, SUCCESS, costs.workspaces[size, name], "", ms))


def recorded(name: str) -> list[tuple[Kernel, Costs]]:
    """Return the kernels of a recorded network, N=16, with their costs."""
    path = TABLES / f"{name}-16.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        lines = [json.loads(line) for line in file]
    kernels = [Kernel(parse_descriptor(line["problem"])[0], line["pass"]) for line in lines]
    return list(zip(kernels, read_tables(path), strict=True))
