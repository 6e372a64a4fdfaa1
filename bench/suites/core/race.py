"""The race between algorithms, played on recorded times, so without noise.

PyTorch and the array functions race for a kernel with STOCK. The drop-in knows no STOCK. In the graph API a
program brings its own engine, here the fastest one within the limit, which is measured first. In the legacy
API it may bring any algorithm, so the drop-in races within the workspace of each. A race pays for every run,
with those that do not count. Its choice is compared by the medians of all recorded runs. `--record NETWORK`
makes the record of a network first.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import random
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench.lib.record import RESULTS, Record
from mucudnn._native import HOST_BYTES_PER_MS, LONG_RUN_MS, RACE_RUNS, RACE_SHARE
from mucudnn.costs.records import STOCK, STOCK_SLICE, SUCCESS, Measurement
from mucudnn.measuring.race import Candidate, RaceGoal, hopeless_ms, next_candidate
from mucudnn.solver import MicroConfiguration, reuse_workspace

TABLES = RESULTS / "costs"
LIMITS = {"8 MiB": 8 << 20, "64 MiB": 64 << 20, "none": 1 << 60}
# The protocols of native/cudnn/kernel_timer.cpp, and of native/shim/decisions/kernel_race.cpp.
THOROUGH_RUNS, THOROUGH_MS = 7, 50.0
DROP_IN_SHARE, DROP_IN_LEAST_MS, DROP_IN_LEAST_RUNS = 0.25, 1.0, 2
ENGINES, MINI_BATCH, KERNELS = 56, 256, 20  # the made-up GPU
Key = tuple[int, str]
Times = dict[Key, float]
Rows = list[Measurement]


@dataclass(frozen=True)
class Costs:
    """A kernel's recorded runs in ms and its workspaces by size and algorithm, in the library's order."""

    count: int
    times: dict[Key, list[float]]
    workspaces: dict[Key, int]
    is_on_gpu: bool = False

    @property
    def mini_batch(self) -> int:
        """The largest size."""
        return max(size for size, _ in self.times)

    @cached_property
    def medians(self) -> Times:
        """The median of all runs of each row."""
        return {key: statistics.median(times) for key, times in self.times.items()}

    @property
    def undivided(self) -> list[str]:
        """The algorithms that can run the whole mini-batch."""
        return [name for size, name in self.times if size == self.mini_batch]

    @property
    def fastest(self) -> str:
        """The algorithm that is the fastest on the whole mini-batch."""
        return min(self.undivided, key=lambda name: self.medians[self.mini_batch, name])

    def best_ms(self, limit: int, measured: Times) -> float:
        """Return the time, by all recorded runs, of the fastest configuration by measured times."""
        parts = [
            MicroConfiguration(size, STOCK if name == STOCK_SLICE else name, ms, self.workspaces[size, name])
            for (size, name), ms in measured.items()
            if self.workspaces[size, name] <= limit
        ]
        chosen = reuse_workspace(parts, self.mini_batch, limit)
        return sum(self.medians[part.micro_batch, self._recorded(part)] for part in chosen.parts)

    def _recorded(self, part: MicroConfiguration) -> str:
        is_slice = part.algorithm == STOCK and part.micro_batch != self.mini_batch
        return STOCK_SLICE if is_slice else part.algorithm

    def without_stock(self, limit: int) -> Costs | None:
        """Return the rows of the engine within a limit; None if nothing runs undivided."""
        times = {
            key: times
            for key, times in self.times.items()
            if not _is_stock(key[1]) and self.workspaces[key] <= limit
        }
        runs_undivided = any(size == self.mini_batch for size, _ in times)
        return Costs(self.count, times, self.workspaces, self.is_on_gpu) if runs_undivided else None


def _is_stock(algorithm: str) -> bool:
    return algorithm in (STOCK, STOCK_SLICE)


def read_tables(path: Path) -> list[Costs]:
    """Return the kernels of one recorded network."""
    tables = []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for kernel in map(json.loads, file):
            times = {(size, name): times for size, name, _, times in kernel["rows"]}
            workspaces = {(size, name): workspace for size, name, workspace, _ in kernel["rows"]}
            tables.append(Costs(kernel["count"], times, workspaces))
    return tables


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the network to record."""
    parser.add_argument("--record", metavar="NETWORK", help="record this network of torchvision first")
    parser.add_argument("--batch", type=int, default=16, help="its mini-batch (default: 16)")


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Play the race on all recorded networks, and on the made-up GPU."""
    if options.record:
        from bench.suites.core.race_recording import make_tables  # needs PyTorch

        TABLES.mkdir(exist_ok=True)
        path = TABLES / f"{options.record}-{options.batch}.jsonl.gz"
        make_tables(options.record, options.batch, path)
    for path in sorted(TABLES.glob("*.jsonl.gz")):
        name, tables = path.name.partition(".")[0], read_tables(path)
        for limit_name, limit in LIMITS.items():
            yield from race_records(f"{name}, {limit_name}", tables, limit)
            kernels = [costs for table in tables if (costs := table.without_stock(limit)) is not None]
            yield from drop_in_records(f"{name}, {limit_name}", kernels, limit)
    case = f"{ENGINES} made-up engines x 9 sizes, 64 MiB"
    kernels = [made_up_engines(seed) for seed in range(KERNELS)]
    yield from drop_in_records(case, kernels, LIMITS["64 MiB"], ("graph",))


def race_records(case: str, tables: list[Costs], limit: int) -> Iterator[Record]:
    """Yield the cost of measuring and the time of the choices, for a race and for measuring everything."""
    stock_ms = sum(table.count * table.medians[table.mini_batch, STOCK] for table in tables)
    best = sum(table.count * table.best_ms(limit, table.medians) for table in tables)
    details = {"kernels": len(tables), "stock_ms": stock_ms}
    ways: dict[str, Callable[[Costs, int], tuple[Times, float]]] = {"race": race, "everything": measure_all}
    for way, play in ways.items():
        paid = chosen = 0.0
        for table in tables:
            measured, ms = play(table, limit)
            paid += ms
            chosen += table.count * table.best_ms(limit, measured)
        yield Record("race", case, f"{way}: measuring", paid / stock_ms, "stock steps", details)
        yield Record("race", case, f"{way}: choice over the best", chosen / best, "ratio", details)


def drop_in_records(
    case: str, kernels: list[Costs], limit: int, apis: tuple[str, ...] = ("legacy", "graph")
) -> Iterator[Record]:
    """Yield the numbers of the drop-in's measurements, and the time of its choices over the best."""
    rows = sum(len(costs.times) for costs in kernels)
    best = sum(costs.count * costs.best_ms(limit, costs.medians) for costs in kernels)
    details = {"kernels": len(kernels), "rows": rows}
    for api in apis:
        made, chosen = 0, 0.0
        for costs in kernels:
            measured = drop_in_race(costs, limit, costs.fastest if api == "graph" else None)
            made += len(measured)
            chosen += costs.count * costs.best_ms(limit, measured)
        yield Record("race", case, f"drop-in, {api}: measurements", made / rows, "of all", details)
        yield Record("race", case, f"drop-in, {api}: choice over the best", chosen / best, "ratio", details)


def race(table: Costs, limit: int) -> tuple[Times, float]:
    """Play the race with STOCK. Return the times that it measures, and the ms that it pays."""
    candidates = [  # the scratch memory of STOCK is unknown before it runs
        Candidate(*key, 0 if _is_stock(key[1]) else table.workspaces[key])
        for key in table.times
        if _is_stock(key[1]) or table.workspaces[key] <= limit
    ]
    rules = RaceGoal(table.mini_batch, (limit,), bytes_per_ms=HOST_BYTES_PER_MS)
    budget_ms = RACE_SHARE * table.times[table.mini_batch, STOCK][0]

    def runs(candidate: Candidate, rows: Rows, times: list[float]) -> list[float]:
        is_fast = _is_stock(candidate.algorithm) or times[0] <= 1.5 * hopeless_ms(candidate, rows)
        return runs_within(times, budget_ms) if times[0] < LONG_RUN_MS and is_fast else []

    return _play(table, candidates, lambda left, rows: next_candidate(left, rows, rules), runs)


def drop_in_race(costs: Costs, limit: int, own: str | None) -> Times:
    """Return the times that the race of the drop-in measures, for a program's own engine or any algorithm."""
    n = costs.mini_batch
    callers = costs.undivided if own is None else [own]
    limits = sorted({limit, *(costs.workspaces[n, name] for name in callers)})
    rate = None if costs.is_on_gpu else HOST_BYTES_PER_MS

    def following(left: list[Candidate], rows: Rows) -> Candidate | None:
        mine = (candidate for candidate in left if candidate[:2] == (n, own))
        races = (RaceGoal(n, (most,), own is None, rate, costs.is_on_gpu) for most in limits)
        nexts = (next_candidate(left, rows, rules) for rules in races)
        return next(mine, None) or next((candidate for candidate in nexts if candidate is not None), None)

    def runs(candidate: Candidate, rows: Rows, times: list[float]) -> list[float]:
        whole = min((row.time_ms or 0 for row in rows if row.micro_batch == n), default=0.0)
        is_fast = times[0] <= 1.5 * hopeless_ms(candidate, rows)
        budget_ms = max(DROP_IN_LEAST_MS, DROP_IN_SHARE * whole)
        return runs_within(times, budget_ms, DROP_IN_LEAST_RUNS) if is_fast else []

    candidates = [Candidate(*key, costs.workspaces[key]) for key in costs.times]
    return _play(costs, candidates, following, runs)[0]


def _play(
    costs: Costs,
    left: list[Candidate],
    following: Callable[[list[Candidate], Rows], Candidate | None],
    runs: Callable[[Candidate, Rows, list[float]], list[float]],
) -> tuple[Times, float]:
    """Measure the following candidate until there is none. Return the times, and the ms of all runs.

    The first run does not count, but it stands for itself where `runs` takes no other.
    """
    rows, measured, paid = Rows(), Times(), 0.0
    while (candidate := following(left, rows)) is not None:
        left.remove(candidate)
        key = candidate.micro_batch, candidate.algorithm
        first, taken = costs.times[key][0], runs(candidate, rows, costs.times[key])
        paid += first + sum(taken)
        measured[key] = statistics.median(taken or [first])
        rows.append(Measurement(*key, SUCCESS, costs.workspaces[key], time_ms=measured[key]))
    return measured, paid


def runs_within(times: list[float], budget_ms: float, least: int = 1) -> list[float]:
    """Return the runs behind the first one that a race takes of a candidate within a budget."""
    taken = list[float]()
    while len(taken) < max(least, 1) or (sum(taken) < budget_ms and len(taken) < RACE_RUNS):
        taken.append(times[(len(taken) + 1) % len(times)])
    return taken


def measure_all(table: Costs, limit: int) -> tuple[Times, float]:
    """Return the times that measuring everything within a limit finds, and the ms that it pays."""
    measured, paid = Times(), 0.0
    for key, times in table.times.items():
        if _is_stock(key[1]) or table.workspaces[key] <= limit:
            most = max(table.mini_batch // key[0], THOROUGH_RUNS)
            taken = times[:3]
            while len(taken) < most and sum(taken) < THOROUGH_MS:
                taken.append(times[len(taken) % len(times)])
            measured[key] = statistics.median(taken)
            paid += times[0] + sum(taken)
    return measured, paid


def made_up_engines(seed: int) -> Costs:
    """Return a kernel with 56 engines at nine sizes within 64 MiB, as cuDNN lists them for an H200.

    Each engine launches, transforms its tensors, and computes in waves over the processors. The heuristics
    rank the engines by their times undivided, and err by a factor of up to three.
    """
    r = random.Random(seed)
    sizes = [1 << exponent for exponent in range(MINI_BATCH.bit_length())]
    sample_ms, tiles = 10 ** r.uniform(-3, -1), r.choice([2, 8, 32, 128])
    engines = []
    for number in range(ENGINES):
        slower, launch_ms = r.choice([1, 1.2, 2, 4, 10]) * r.uniform(1, 1.5), r.uniform(0.004, 0.03)
        block = r.choice([1, 2, 4])
        workspace, fixed = r.choice([0, 0, 1, 2]) * (1 << 20), r.choice([0, 1 << 16])
        times = {}
        for size in sizes:
            waves = math.ceil(size * tiles / block / 132) * 132 * block / tiles  # samples that fill all waves
            times[size] = launch_ms + waves * sample_ms * slower
        engines.append((f"eng{number}", times, workspace, fixed))
    engines.sort(key=lambda engine: engine[1][MINI_BATCH] * 3 ** r.uniform(-1, 1))
    runs, workspaces = {}, {}
    for size in sizes:
        for name, times, workspace, fixed in engines:
            runs[size, name] = [times[size] * r.uniform(1, 1.03) for _ in range(7)]
            workspaces[size, name] = workspace * size + fixed
    costs = Costs(1, runs, workspaces, is_on_gpu=True).without_stock(LIMITS["64 MiB"])
    assert costs is not None
    return costs
