"""`python -m bench.race`: play the race on recorded measurements, where no noise of this machine counts.

`--record NETWORK` makes the record of a network: every algorithm at every size, and STOCK. The times are
those of the processor, so other programs change them little. The record is on one thread.

A race pays for every run that it makes, with those that do not count. Its choice is judged by the medians of
all recorded runs. The program writes `race.jsonl`.
"""

from __future__ import annotations

import argparse
import gzip
import json
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.record import RESULTS, Record, describe_machine, show, write
from mucudnn._native import HOST_BYTES_PER_MS, LONG_RUN_MS, RACE_RUNS, RACE_SHARE
from mucudnn.costs.records import STOCK, STOCK_SLICE, SUCCESS, Measurement
from mucudnn.measuring.race import Candidate, Race, next_candidate, rival_ms
from mucudnn.solver import MicroConfiguration, reuse_workspace

TABLES = RESULTS / "costs"
LIMITS = {"8 MiB": 8 << 20, "64 MiB": 64 << 20, "none": 1 << 60}
THOROUGH_RUNS, THOROUGH_MS = 7, 50.0  # the protocol of native/cudnn/kernel_timer.cpp
RECORDED_RUNS, RECORDED_MS = 7, 120.0
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


def make_tables(name: str, batch: int, path: Path) -> None:
    """Record a network. A record that was interrupted is continued."""
    import torch

    from bench.zoo import kernels_of
    from mucudnn.arrays.devices import device_named
    from mucudnn.measuring.buffers import measuring_extent
    from mucudnn.problems.policies import usable_sizes
    from mucudnn.torch import stock

    torch.set_num_threads(1)
    engine = device_named("cpu", 1).engine
    work = path.with_suffix("")
    done = set()
    if work.exists():
        done = {(row["problem"], row["pass"]) for row in map(json.loads, work.read_text().splitlines())}
    for kernel in kernels_of(name, batch):
        if (str(kernel.problem), kernel.pass_) in done:
            continue
        extent = measuring_extent(kernel.problem, engine.available_memory // 2, engine.bytes_beyond_caches)
        tensors = stock.random_tensors("cpu", kernel.problem, extent.samples)
        timer, rows = stock.TorchTimer("cpu", kernel, tensors), []
        x, w, y = (tensor.data_ptr() for tensor in tensors)
        x_bytes, y_bytes = extent.x // extent.samples, extent.y // extent.samples
        for size in usable_sizes("power_of_two", kernel):
            places, is_slice = max(extent.samples // size, 1), size != batch
            with stock.quiet("cpu"):
                scratch = stock.scratch_of("cpu", lambda: timer.run(size, 0, is_slice))  # noqa: B023
                times = _clocked(lambda at: timer.run(size, at, is_slice), places, size)  # noqa: B023
            rows.append([size, STOCK_SLICE if is_slice else STOCK, scratch, times])
            for candidate in engine.enumerate(kernel.at(size)):
                if candidate.status != SUCCESS or candidate.workspace > 3 << 30:
                    continue
                division = engine.prepare(kernel.at(size), [(size, candidate.algorithm)])
                scratch_memory = engine.allocate(max(division.workspace, 1))
                times = _clocked(
                    lambda at: division.run(x + at * x_bytes, w, y + at * y_bytes, scratch_memory),  # noqa: B023
                    places, size,
                )  # fmt: skip
                rows.append([size, candidate.algorithm, candidate.workspace, times])
        line = {"problem": str(kernel.problem), "pass": kernel.pass_, "count": kernel.count, "rows": rows}
        with work.open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")
    with gzip.GzipFile(path, "wb", mtime=0) as packed:
        packed.write(work.read_bytes())
    work.unlink()


def _clocked(run: Callable[[int], object], places: int, size: int) -> list[float]:
    """Return the processor's ms of runs that rotate over slices. The first does not count."""
    run(0)
    times = list[float]()
    while len(times) < 3 or (len(times) < RECORDED_RUNS and sum(times) < RECORDED_MS):
        start = time.thread_time()
        run((len(times) + 1) % places * size)
        times.append(round((time.thread_time() - start) * 1e3, 4))
    return times


def main() -> None:
    """Play the race on all recorded networks, or record one."""
    parser = argparse.ArgumentParser(prog="python -m bench.race", description=__doc__)
    parser.add_argument("--record", metavar="NETWORK", help="record this network of bench.zoo")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--output", type=Path, default=RESULTS / "race.jsonl", help="file for the records")
    arguments = parser.parse_args()
    if arguments.record:
        TABLES.mkdir(exist_ok=True)
        path = TABLES / f"{arguments.record}-{arguments.batch}.jsonl.gz"
        make_tables(arguments.record, arguments.batch, path)
        return
    from bench.drop_in_race import drop_in_records, gpu_records

    console, found = Console(width=110), list[Record]()
    for path in sorted(TABLES.glob("*.jsonl.gz")):
        name, tables = path.name.partition(".")[0], read_tables(path)
        found += [*records(name, tables), *drop_in_records(name, tables)]
    found += gpu_records()
    show(console, found)
    write(arguments.output, describe_machine(), found)


if __name__ == "__main__":
    main()
