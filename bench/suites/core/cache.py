"""The cost of a warm cache: deciding a whole network, and opening a large file.

The measurements in the cache are invented. The time of a decision depends on their number, not on their
values. Each command is a process of its own, timed from its start to its end. Times are medians.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from bench.lib.process import median_ms
from bench.lib.record import Record
from mucudnn._native import parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import SUCCESS, Listed, Machine, Measurement
from mucudnn.measuring.bench import machine_of
from mucudnn.measuring.engines import open_engine
from mucudnn.problems.kernels import PASSES, Kernel
from mucudnn.problems.policies import POLICIES, micro_batch_sizes
from mucudnn.problems.sources import Flags, read_kernels

SEED = 2018
KERNELS, ROWS = 1000, 100  # rows of each kernel
MACHINE = Machine("host", "a device", "a library 1.0", 1)


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Measure everything in a folder that is deleted afterwards."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield from _decide(folder / "resnet50.sqlite")
        yield from _open_large(folder / "large.sqlite")


def _decide(path: Path) -> Iterator[Record]:
    rows = _fill_network(path)
    yield Record("cache", "mucudnn --version", "time", _command(path, "--version"), "ms")
    for policy in POLICIES:
        for limit in ("--workspace", "--total-workspace"):
            arguments = ("optimize", "resnet50", limit, "512MiB", "--batch-policy", policy)
            for source in (("--no-run",), ("--replay", str(path))):
                case = " ".join((*arguments, source[0]))
                yield Record("cache", case, "time", _command(path, *arguments, *source), "ms", {"rows": rows})


def _open_large(path: Path) -> Iterator[Record]:
    _write(path)
    details = {"size_mib": round(path.stat().st_size / 2**20, 1)}

    def answer(opening: Callable[[Path], Cache]) -> None:
        with opening(path) as cache:
            (machine,) = cache.machines()
            assert len(cache.measurements(machine, _kernel(KERNELS))) == ROWS

    for name, opening in (("to write", Cache.open), ("to read", Cache.read_only)):
        case = f"open {name}, answer one problem of {KERNELS * ROWS} rows"
        yield Record("cache", case, "time", median_ms(partial(answer, opening))[0], "ms", details)


def _write(path: Path) -> None:
    with Cache.open(path) as cache:
        for channels in range(1, KERNELS + 1):
            for size in range(1, ROWS + 1):
                measured = Measurement(size, "ALGORITHM", SUCCESS, 4096 * size, "", 0.1 * size, 0.01)
                cache.add(MACHINE, _kernel(channels), measured)


def _kernel(channels: int) -> Kernel:
    return Kernel(parse_descriptor(f"ic{channels}ih14_oc64_kh3_ph1")[0], "forward")


def _fill_network(path: Path) -> int:
    """Fill a cache with ResNet-50 at every mini-batch size up to 64; return the number of measurements.

    Algorithms and workspaces are the host engine's, times are random.
    """
    engine, random_times, rows = open_engine("host", 1), random.Random(SEED), 0
    with Cache.open(path) as cache:
        for kernel in read_kernels("resnet50", Flags(), PASSES):
            listed = {
                size: [c for c in engine.enumerate(kernel.at(size)) if c.status == SUCCESS]
                for size in micro_batch_sizes("all", kernel.mini_batch)
            }
            runnable = {
                size: [Listed(c.algorithm, c.workspace, c.notes) for c in candidates]
                for size, candidates in listed.items()
            }
            cache.add_enumerations(machine_of(engine), kernel, runnable)
            for size, candidates in listed.items():
                for c in candidates:
                    ms = 0.05 + kernel.at(size).problem.flops / 1e8 * random_times.uniform(0.5, 2)
                    measured = Measurement(size, c.algorithm, SUCCESS, c.workspace, c.notes, ms, 0.01)
                    cache.add(machine_of(engine), kernel, measured)
                    rows += 1
    return rows


def _command(cache: Path, *arguments: str) -> float:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MUCUDNN_")}
    environment["MUCUDNN_CACHE"] = str(cache)
    command = [sys.executable, "-m", "mucudnn", *arguments]
    run = partial(subprocess.run, command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return median_ms(run)[0]
