"""The choices that a busy machine leads to, and the time that decisions take from a program.

- recovery: a model is tuned beside two busy loops. A day later, on a quiet machine, a process runs 25 steps;
  its next steps are compared with those of processes whose caches were empty, and which decided at once.
- choices: algorithms are timed beside seeded bursts of other programs. The choice by the median of the wall
  times, as before, and by today's estimate are compared with the choice on the quiet machine.
- sizes: a program whose every step has another size, beside stock PyTorch.
- first: the first steps of a program in stock steps, with an empty cache.
- clocks: the time that reading the clocks adds to a call.

The parts `recovery` and `choices` make their own load; the machine should do nothing else. `--only first`
takes one part.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sqlite3
import statistics
import subprocess
import sys
import timeit
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from bench.lib.load import bursts, busy_loops
from bench.lib.record import Record
from mucudnn._native import Engine, RunTime, estimate, host_library, parse_descriptor
from mucudnn.costs.records import SUCCESS
from mucudnn.measuring.buffers import Tensors, allocate_workspace, extent
from mucudnn.problems.kernels import Kernel

NETWORKS = ("vgg11", "resnet18", "mobilenet_v2")
TUNING_STEPS, MORE_STEPS, COMPARED_STEPS, ROUNDS = 12, 25, 7, 2
FIRST = ("resnet18", "squeezenet1_1", "mobilenet_v2", "regnet_y_400mf")
SIZES_STEPS, FIRST_STEPS, STOCK_STEPS = 24, 8, 5
LAYERS = (
    "mb8_ic64ih56_oc64_kh3_ph1", "mb8_ic128ih28_oc128_kh3_ph1", "mb8_ic256ih14_oc256_kh3_ph1",
    "mb8_ic512ih7_oc512_kh3_ph1", "mb8_ic64ih56_oc128_kh3_sh2_ph1", "mb8_ic256ih14_oc1024_kh1",
    "mb8_ic64ih27_oc192_kh5_ph2",
)  # fmt: skip
RUNS, TRIES, TRUE_RUNS, WRONG = 7, 6, 9, 0.03
_MOST_S = 600.0
Times = dict[str, list[RunTime]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare which parts are measured."""
    parser.add_argument("--only", choices=PARTS, help="one part")
    parser.add_argument("--networks", nargs="+", metavar="NAME", help="the networks of recovery and first")


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Measure all parts, or one."""
    for name, part in PARTS.items():
        if options.only in (None, name):
            yield from part(options.networks)


def recovery(networks: list[str] | None) -> Iterator[Record]:
    """Yield the speed of a model that was tuned on a busy machine, 25 steps later, over a fresh one's."""
    for network in networks or NETWORKS:
        with TemporaryDirectory() as folder:
            busy, times = Path(folder) / "busy.sqlite", dict[str, list[float]]()
            with busy_loops(2):
                steps_of(network, "converted", busy, "--steps", str(TUNING_STEPS))
            age(busy)
            steps = str(MORE_STEPS + COMPARED_STEPS)
            for number in range(ROUNDS):
                for name in ("busy", "fresh"):
                    cache = Path(folder) / f"{name}{number}.sqlite"
                    if name == "busy":
                        shutil.copy(busy, cache)
                    # A fresh cache must be complete, and a paced budget takes more steps than these.
                    variables = {"MUCUDNN_BUDGET": "none"} if name == "fresh" else {}
                    ran = steps_of(network, "converted", cache, "--steps", steps, **variables)
                    times.setdefault(name, []).extend(ran["seconds"][0][MORE_STEPS:])
        ms = {name: statistics.median(own) * 1e3 for name, own in times.items()}
        case = f"{network}, N=4, 2 threads"
        yield Record("busy", case, "speed after a busy moment", ms["fresh"] / ms["busy"], "ratio", ms)


def age(cache: Path) -> None:
    """Make the measurements of a cache a day older, so that those of a busy moment are due."""
    before = (datetime.now(UTC) - timedelta(days=1)).isoformat(timespec="seconds")
    connection = sqlite3.connect(cache)
    with connection:
        connection.execute("UPDATE measurements SET measured_at = ?", (before,))
    connection.close()


def choices(networks: list[str] | None) -> Iterator[Record]:
    """Yield the wrong choices and the time that choices lose, by the median wall time and by the estimate."""
    for threads in (1, 2):
        engine = Engine(host_library(), threads=threads)
        lost: dict[str, list[float]] = {"median wall time": [], "estimate": []}
        for number, text in enumerate(LAYERS):
            kernel = Kernel(parse_descriptor(text)[0], "forward")
            run = runner(engine, kernel)
            true_ms = {name: estimate(own, name).time_ms for name, own in run(TRUE_RUNS).items()}
            best_ms = min(true_ms.values())
            for attempt in range(TRIES):
                with bursts(2, seed=100 * number + attempt):
                    times = run(RUNS)
                walls = {name: statistics.median(t.wall_ms for t in own) for name, own in times.items()}
                estimates = {name: estimate(own, name).time_ms for name, own in times.items()}
                for way, ms in zip(lost, (walls, estimates), strict=True):
                    lost[way].append(true_ms[min(ms, key=ms.__getitem__)] / best_ms - 1)
        for way, own in lost.items():
            case = f"{way}, {threads} thread{'s' * (threads > 1)}"
            details = {"choices": len(own), "worst": max(own)}
            yield Record(
                "busy", case, "wrong choices", statistics.mean(x > WRONG for x in own), "share", details
            )
            yield Record("busy", case, "time lost", statistics.mean(own), "share", details)


def runner(engine: Engine, kernel: Kernel) -> Callable[[int], Times]:
    """Return a function that runs each algorithm of a kernel that often, one after another."""
    listed = [candidate for candidate in engine.enumerate(kernel) if candidate.status == SUCCESS]
    tensors = Tensors.random(engine, kernel.problem, extent(kernel.problem))
    workspace = allocate_workspace(engine, max(candidate.workspace for candidate in listed))
    divisions = {
        candidate.algorithm: engine.prepare(kernel, ((kernel.mini_batch, candidate.algorithm),))
        for candidate in listed
    }

    def run(runs: int) -> Times:
        times: Times = {}
        for name, division in divisions.items():
            division.execute(tensors.x, tensors.w, tensors.y, workspace)
            times[name] = [
                engine.time(
                    lambda: division.execute(tensors.x, tensors.w, tensors.y, workspace),  # noqa: B023
                    engine.threads,
                )
                for _ in range(runs)
            ]
        return times

    return run


def sizes(networks: list[str] | None) -> Iterator[Record]:
    """Yield the time of steps of ever new sizes over stock PyTorch's, with an empty cache."""
    with TemporaryDirectory() as folder:
        steps = "--steps", str(SIZES_STEPS), "--sizes", "--batch", "2"
        ran = steps_of("resnet18", "both", Path(folder) / "cache.sqlite", *steps)
    stock, ours = ran["seconds"]
    case = f"resnet18, N=2, 2 threads, {SIZES_STEPS} random sizes"
    yield Record("busy", case, "time over stock", sum(ours) / sum(stock), "ratio", {"stock_s": sum(stock)})


def first(networks: list[str] | None) -> Iterator[Record]:
    """Yield the longest of the first steps in stock steps, with and without a limit."""
    for network in networks or FIRST:
        for batch in (16, 1):
            shared = "--batch", str(batch)
            with TemporaryDirectory() as folder:
                cache = Path(folder) / "cache.sqlite"
                stock = steps_of(network, "stock", cache, "--steps", str(STOCK_STEPS), *shared)
                stock_s = min(stock["seconds"][0])
                for limit in (None, "64MiB"):
                    cache = Path(folder) / f"{limit}.sqlite"
                    named = () if limit is None else ("--limit", limit)
                    ran = steps_of(network, "converted", cache, "--steps", str(FIRST_STEPS), *shared, *named)
                    steps = [own / stock_s for own in ran["seconds"][0]]
                    case = f"{network}, N={batch}, {limit or 'no'} limit"
                    details = {"stock_ms": stock_s * 1e3, "steps": [round(own, 2) for own in steps]}
                    yield Record("busy", case, "longest first step", max(steps), "stock steps", details)


def clocks(networks: list[str] | None) -> Iterator[Record]:
    """Yield the µs of two readings of the clocks, which time a call."""
    for threads in (1, 2):
        engine = Engine(host_library(), threads=threads)
        engine.meet_team()
        timed: Callable[[], Any] = lambda: engine.read_clocks().until(engine.read_clocks(), 1)  # noqa: B023, E731
        µs = min(timeit.repeat(timed, number=1000, repeat=20)) * 1e3
        yield Record("busy", f"{threads} thread{'s' * (threads > 1)}", "clocks of a call", µs, "µs")


def steps_of(network: str, way: str, cache: Path, *options: str, **variables: str) -> dict[str, Any]:
    """Return what a process of `busy_process` with these environment variables prints."""
    command = [sys.executable, "-m", "bench.suites.networks.busy_process", network, way, *options]
    environment = {**os.environ, "MUCUDNN_CACHE": str(cache), **variables}
    ran = subprocess.run(command, env=environment, capture_output=True, check=True, timeout=_MOST_S)
    figures: dict[str, Any] = json.loads(ran.stdout)
    return figures


PARTS = {"recovery": recovery, "choices": choices, "sizes": sizes, "first": first, "clocks": clocks}
