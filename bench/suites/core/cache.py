"""The cost of a warm cache: deciding a whole network, opening a large file, writing from many processes.

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
import time
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from bench.lib.process import median_ms
from bench.lib.record import Record
from mucudnn._native import Problem, format_candidates, parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import SUCCESS, Machine, Measurement
from mucudnn.costs.schema import ENUMERATION, MEASUREMENT, Row
from mucudnn.measuring.bench import machine_of
from mucudnn.measuring.engines import open_engine
from mucudnn.problems.kernels import PASSES, Kernel
from mucudnn.problems.policies import POLICIES, micro_batch_sizes
from mucudnn.problems.sources import Flags, read_kernels

SEED = 2018
ROWS = 100_000
WRITERS, ROWS_EACH = 8, 1000
MACHINE = Machine("host", "a device", "a library 1.0", 1)


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Measure everything in a folder that is deleted afterwards."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        yield from _decide(folder)
        yield from _open_large(folder)
        yield _many_writers(folder)


def _decide(folder: Path) -> Iterator[Record]:
    path = folder / "resnet50.sqlite"
    rows = _fill_network(path)
    yield Record("cache", "mucudnn --version", "time", _command(path, "--version"), "ms")
    for policy in POLICIES:
        for limit in ("--workspace", "--total-workspace"):
            arguments = ("optimize", "resnet50", "--passes", "all", limit, "512MiB", "--batch-policy", policy)
            for source in (("--no-run",), ("--replay", str(path))):
                case = " ".join((*arguments, source[0]))
                yield Record("cache", case, "time", _command(path, *arguments, *source), "ms", {"rows": rows})


def _open_large(folder: Path) -> Iterator[Record]:
    path = folder / "large.sqlite"
    problems = [parse_descriptor(f"ic{ic}ih14_oc64_kh3_ph1")[0] for ic in range(1, 1001)]
    with Cache.open(path) as cache:
        cache.merge(_invented_rows(MACHINE, ((problem, 100) for problem in problems)))
        ((rows,),) = cache.query("SELECT count(*) FROM measurements")
    assert rows == ROWS
    size = round(path.stat().st_size / 2**20, 1)

    def answer(opening: Callable[[Path], Cache]) -> None:
        with opening(path) as cache:
            (machine,) = cache.machines()
            assert len(cache.measurements(machine, Kernel(problems[500], "forward"))) == 100

    for name, opening in (("to write", Cache.open), ("to read", Cache.read_only)):
        case = f"open {name}, answer one problem of {rows} rows"
        yield Record("cache", case, "time", median_ms(partial(answer, opening))[0], "ms", {"size_mib": size})


def _many_writers(folder: Path) -> Record:
    path = folder / "shared.sqlite"
    script = (
        "import sys; from pathlib import Path; from bench.suites.core.cache import write; "
        "print(flush=True); input(); write(Path(sys.argv[1]), int(sys.argv[2]))"
    )
    Cache.open(path).__exit__()
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", script, str(path), str(number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=Path(__file__).parent.parent, text=True,
        )
        for number in range(WRITERS)
    ]  # fmt: skip
    for writer in writers:  # wait until every process has done its imports, which are not timed
        assert writer.stdout is not None
        writer.stdout.readline()
    start = time.perf_counter()
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("\n")
        writer.stdin.flush()
    for writer in writers:
        writer.communicate()
    seconds = time.perf_counter() - start
    with Cache.read_only(path) as cache:
        ((rows,),) = cache.query("SELECT count(*) FROM measurements")
    details = {"written": WRITERS * ROWS_EACH, "kept": rows, "seconds": round(seconds, 2)}
    return Record("cache", f"{WRITERS} processes write", "rate", rows / seconds, "rows/s", details)


def write(path: Path, number: int) -> None:
    """Write ROWS_EACH measurements of a problem of its own, and commit each row before the next."""
    kernel = Kernel(parse_descriptor(f"ic{number + 1}ih14_oc64_kh3_ph1")[0], "forward")
    with Cache.open(path) as cache:
        for size in range(1, ROWS_EACH + 1):
            cache.add(MACHINE, kernel, Measurement(size, "ALGORITHM", SUCCESS, 0, "", 1.0, 0.0))


def _fill_network(path: Path) -> int:
    """Fill a cache with ResNet-50 at every mini-batch size up to 64; return the number of rows.

    Algorithms and workspaces are the host engine's, times are random.
    """
    engine = open_engine("host", 1)
    machine = machine_of(engine)
    random_times = random.Random(SEED)
    rows: list[Row] = []
    for kernel in read_kernels("resnet50", Flags(), PASSES):
        for size in micro_batch_sizes("all", kernel.mini_batch):
            micro_batch = kernel.at(size)
            enumeration = list(engine.enumerate(micro_batch))
            runnable = [(c.algorithm, c.workspace, c.notes) for c in enumeration if c.status == SUCCESS]
            candidates = {"micro_batch": size, "candidates": format_candidates(runnable)}
            rows.append((ENUMERATION, ENUMERATION.row(machine, kernel, candidates)))
            for candidate in enumeration:
                runs = candidate.status == SUCCESS
                milliseconds = 0.05 + micro_batch.problem.flops / 1e8 * random_times.uniform(0.5, 2)
                measured = Measurement(
                    size, candidate.algorithm, candidate.status, candidate.workspace, candidate.notes,
                    milliseconds if runs else None, 0.01 if runs else None,
                )  # fmt: skip
                rows.append((MEASUREMENT, MEASUREMENT.row(machine, kernel, vars(measured))))
    with Cache.open(path) as cache:
        return cache.merge(rows)


def _invented_rows(machine: Machine, problems: Iterable[tuple[Problem, int]]) -> Iterator[Row]:
    for problem, count in problems:
        for size in range(1, count + 1):
            measured = Measurement(size, "ALGORITHM", SUCCESS, 4096 * size, "", 0.1 * size, 0.01)
            yield MEASUREMENT, MEASUREMENT.row(machine, Kernel(problem, "forward"), vars(measured))


def _command(cache: Path, *arguments: str) -> float:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("MUCUDNN_")}
    environment["MUCUDNN_CACHE"] = str(cache)
    command = [sys.executable, "-m", "mucudnn", *arguments]
    run = partial(subprocess.run, command, env=environment, stdout=subprocess.DEVNULL, check=True)
    return median_ms(run)[0]
