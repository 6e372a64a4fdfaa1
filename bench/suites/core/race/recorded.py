"""The race of PyTorch and the array functions, played on recorded times, so without noise.

A race pays for every run that it makes, with those that do not count. Its choice is compared by the medians
of all recorded runs.
"""

from __future__ import annotations

import gzip
import json
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.lib.record import RESULTS, Record
from mucudnn._native import HOST_BYTES_PER_MS, LONG_RUN_MS, RACE_RUNS, RACE_SHARE
from mucudnn.costs.records import STOCK, STOCK_SLICE, SUCCESS, Measurement
from mucudnn.measuring.race import Candidate, Race, next_candidate, rival_ms
from mucudnn.solver import MicroConfiguration, reuse_workspace

TABLES = RESULTS / "costs"
LIMITS = {"8 MiB": 8 << 20, "64 MiB": 64 << 20, "none": 1 << 60}
THOROUGH_RUNS, THOROUGH_MS = 7, 50.0  # the protocol of native/cudnn/kernel_timer.cpp
Key = tuple[int, str]


@dataclass(frozen=True)
class Table:
    """The recorded times of one kernel in ms, with the workspaces, by size and algorithm."""

    name: str
    count: int
    workspaces: dict[Key, int]
    times: dict[Key, list[float]]

    @property
    def mini_batch(self) -> int:
        """The size of STOCK's undivided call."""
        return next(size for size, algorithm in self.times if algorithm == STOCK)

    def best(self, limit: int, measured: dict[Key, float] | None = None) -> tuple[tuple[Key, ...], float]:
        """Return the parts of the fastest configuration by these times, and its time by all recorded runs."""
        times = self.medians if measured is None else measured
        parts = [
            MicroConfiguration(size, STOCK if name == STOCK_SLICE else name, ms, self.workspaces[size, name])
            for (size, name), ms in times.items()
            if self.workspaces[size, name] <= limit
        ]
        found = reuse_workspace(parts, self.mini_batch, limit)
        keys = tuple((part.micro_batch, self._recorded(part)) for part in found.parts)
        return keys, sum(self.medians[key] for key in keys)

    @property
    def medians(self) -> dict[Key, float]:
        """The median of all runs of each row."""
        return {key: statistics.median(times) for key, times in self.times.items()}

    def _recorded(self, part: MicroConfiguration) -> str:
        is_slice = part.algorithm == STOCK and part.micro_batch != self.mini_batch
        return STOCK_SLICE if is_slice else part.algorithm


def read_tables(path: Path) -> list[Table]:
    """Return the tables of one network."""
    tables = []
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in file:
            kernel = json.loads(line)
            rows = {(size, name): (workspace, times) for size, name, workspace, times in kernel["rows"]}
            tables.append(
                Table(
                    f"{kernel['problem']} {kernel['pass']}",
                    kernel["count"],
                    {key: workspace for key, (workspace, _) in rows.items()},
                    {key: times for key, (_, times) in rows.items()},
                )
            )
    return tables


def race(table: Table, limit: int, **options: Any) -> tuple[dict[Key, float], float]:
    """Play the race on a table. Return the times that it measures, and the ms that it pays."""
    left = [
        # Nobody knows the scratch memory of STOCK before it runs.
        Candidate(size, name, 0 if name in (STOCK, STOCK_SLICE) else table.workspaces[size, name])
        for size, name in table.times
        if name in (STOCK, STOCK_SLICE) or table.workspaces[size, name] <= limit
    ]
    rows, measured, paid = list[Measurement](), dict[Key, float](), 0.0
    rules = Race(table.mini_batch, (limit,), bytes_per_ms=HOST_BYTES_PER_MS, **options)
    unit = table.times[table.mini_batch, STOCK][0]
    while (found := next_candidate(left, rows, rules)) is not None:
        left.remove(found)
        key = found.micro_batch, found.algorithm
        first, *later = table.times[key]
        taken = [first]  # the run that does not count stands for itself where it is hopeless or long
        paid += first
        is_stock = found.algorithm in (STOCK, STOCK_SLICE)
        if first < LONG_RUN_MS and (is_stock or first <= 1.5 * rival_ms(found, rows)):
            taken = runs_within([*later, first], RACE_SHARE * unit)
            paid += sum(taken)
        measured[key] = statistics.median(taken)
        rows.append(Measurement(*key, SUCCESS, table.workspaces[key], median_ms=measured[key]))
    return measured, paid


def runs_within(times: list[float], budget_ms: float, least: int = 1) -> list[float]:
    """Return the runs that a race takes of a candidate within a budget."""
    taken = times[:1]
    while len(taken) < least or (sum(taken) < budget_ms and len(taken) < RACE_RUNS):
        taken.append(times[len(taken) % len(times)])
    return taken


def thorough(table: Table, limit: int) -> tuple[dict[Key, float], float]:
    """Return the times that measuring everything within a limit finds, and the ms that it pays."""
    measured, paid = dict[Key, float](), 0.0
    for key, times in table.times.items():
        if key[1] in (STOCK, STOCK_SLICE) or table.workspaces[key] <= limit:
            most = max(table.mini_batch // key[0], THOROUGH_RUNS)
            taken = times[:3]
            while len(taken) < most and sum(taken) < THOROUGH_MS:
                taken = [*taken, times[len(taken) % len(times)]]
            measured[key] = statistics.median(taken)
            paid += times[0] + sum(taken)
    return measured, paid


def records(name: str, tables: list[Table], options: dict[str, Any] | None = None) -> Iterator[Record]:
    """Return the cost of measuring and the time of the choices for a network, for both ways to measure."""
    ways: dict[str, Callable[[Table, int], tuple[dict[Key, float], float]]] = {
        "race": lambda table, limit: race(table, limit, **(options or {})),
        "everything": thorough,
    }
    stock_ms = sum(table.count * table.medians[table.mini_batch, STOCK] for table in tables)
    for limit_name, limit in LIMITS.items():
        best = sum(table.count * table.best(limit)[1] for table in tables)
        for way, play in ways.items():
            paid = chosen = 0.0
            for table in tables:
                measured, ms = play(table, limit)
                paid += ms
                chosen += table.count * table.best(limit, measured)[1]
            case, details = f"{name}, {limit_name}", {"kernels": len(tables), "stock_ms": stock_ms}
            yield Record("race", case, f"{way}: measuring", paid / stock_ms, "stock steps", details)
            yield Record("race", case, f"{way}: choice over the best", chosen / best, "ratio", details)
