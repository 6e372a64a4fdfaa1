"""The race of the drop-in on recorded times, and on made-up engines of a GPU.

The drop-in knows no STOCK. In the graph API a program brings its own engine, here the fastest one within the
limit, which is measured first. In the legacy API it may bring any algorithm, so the race is run within the
workspace of each. The choices are compared as those of `recorded`.
"""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from bench.lib.record import Record
from bench.suites.core.race.recorded import LIMITS, Key, Table, runs_within
from mucudnn._native import HOST_BYTES_PER_MS
from mucudnn.costs.records import STOCK, STOCK_SLICE, SUCCESS, Measurement
from mucudnn.measuring.race import Candidate, Race, next_candidate, rival_ms
from mucudnn.solver import MicroConfiguration, reuse_workspace

# The protocol of native/shim/decisions/kernel_race.cpp and native/cudnn/kernel_timer.cpp.
SHARE, LEAST_MS, LEAST_RUNS = 0.25, 1.0, 2
ENGINES, MINI_BATCH, KERNELS = 56, 256, 20


@dataclass(frozen=True)
class Costs:
    """The runs in ms and the workspaces of one kernel's algorithms within a limit, in the library's order."""

    mini_batch: int
    count: int
    limit: int
    times: dict[Key, list[float]]
    workspaces: dict[Key, int]
    bytes_per_ms: float | None = None
    is_on_gpu: bool = False

    def best_ms(self, measured: dict[Key, float]) -> float:
        """Return the time, by all recorded runs, of the fastest configuration by measured times."""
        parts = [MicroConfiguration(*key, ms, self.workspaces[key]) for key, ms in measured.items()]
        found = reuse_workspace(parts, self.mini_batch, self.limit)
        medians = self.medians
        return sum(medians[part.micro_batch, part.algorithm] for part in found.parts)

    @property
    def medians(self) -> dict[Key, float]:
        """The median of all runs of each row."""
        return {key: statistics.median(times) for key, times in self.times.items()}

    def undivided(self) -> list[str]:
        """Return the algorithms that can run the whole mini-batch."""
        return [name for size, name in self.times if size == self.mini_batch]

    def fastest_undivided(self) -> str:
        """Return the algorithm that is the fastest on the whole mini-batch."""
        medians = self.medians
        return min(self.undivided(), key=lambda name: medians[self.mini_batch, name])


def play(costs: Costs, own: str | None) -> dict[Key, float]:
    """Return the times that the race of the drop-in measures, for a program's own engine or any algorithm."""
    n = costs.mini_batch
    left = [Candidate(*key, costs.workspaces[key]) for key in costs.times]
    callers = costs.undivided() if own is None else [own]
    limits = sorted({costs.limit, *(costs.workspaces[n, name] for name in callers)})
    rows, measured = list[Measurement](), dict[Key, float]()

    def following() -> Candidate | None:
        mine = next((c for c in left if (c.micro_batch, c.algorithm) == (n, own)), None)
        if mine is not None:
            return mine
        for limit in limits:
            rules = Race(n, (limit,), own is None, costs.bytes_per_ms, costs.is_on_gpu)
            found = next_candidate(left, rows, rules)
            if found is not None:
                return found
        return None

    while (found := following()) is not None:
        left.remove(found)
        key = found.micro_batch, found.algorithm
        first, *later = costs.times[key]
        taken = [first]
        if first <= 1.5 * rival_ms(found, rows):
            whole = min((row.median_ms or 0 for row in rows if row.micro_batch == n), default=0.0)
            taken = runs_within([*later, first], max(LEAST_MS, SHARE * whole), LEAST_RUNS)
        measured[key] = statistics.median(taken)
        rows.append(Measurement(*key, SUCCESS, found.workspace, median_ms=measured[key]))
    return measured


def costs_of(table: Table, limit: int) -> Costs | None:
    """Return the costs of a table without STOCK; None if nothing runs undivided within the limit."""
    keys = [
        key for key in table.times if key[1] not in (STOCK, STOCK_SLICE) and table.workspaces[key] <= limit
    ]
    costs = Costs(
        table.mini_batch, table.count, limit,
        {key: table.times[key] for key in keys}, {key: table.workspaces[key] for key in keys},
        HOST_BYTES_PER_MS,
    )  # fmt: skip
    return costs if costs.undivided() else None


def made_up_engines(seed: int) -> Costs:
    """Return a kernel with 56 engines at nine sizes, as cuDNN lists them for an H200.

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
    limit = 64 << 20
    keys = [key for key in runs if workspaces[key] <= limit]
    return Costs(
        MINI_BATCH, 1, limit, {key: runs[key] for key in keys}, {key: workspaces[key] for key in keys},
        is_on_gpu=True,
    )  # fmt: skip


def records(case: str, kernels: list[Costs], apis: tuple[str, ...] = ("legacy", "graph")) -> Iterator[Record]:
    """Return the numbers of measurements, and the time of the choices over the best."""
    rows = sum(len(costs.times) for costs in kernels)
    best = sum(costs.count * costs.best_ms(costs.medians) for costs in kernels)
    for api in apis:
        made, chosen = 0, 0.0
        for costs in kernels:
            measured = play(costs, costs.fastest_undivided() if api == "graph" else None)
            made += len(measured)
            chosen += costs.count * costs.best_ms(measured)
        details = {"kernels": len(kernels), "rows": rows}
        yield Record("race", case, f"drop-in, {api}: measurements", made / rows, "of all", details)
        yield Record("race", case, f"drop-in, {api}: choice over the best", chosen / best, "ratio", details)


def drop_in_records(name: str, tables: list[Table]) -> Iterator[Record]:
    """Return the records of a network."""
    for limit_name, limit in LIMITS.items():
        kernels = [costs for table in tables if (costs := costs_of(table, limit)) is not None]
        yield from records(f"{name}, {limit_name}", kernels)


def gpu_records() -> Iterator[Record]:
    """Return the records of made-up kernels on a GPU."""
    kernels = [made_up_engines(seed) for seed in range(KERNELS)]
    yield from records(f"{ENGINES} made-up engines x 9 sizes, 64 MiB", kernels, ("graph",))
