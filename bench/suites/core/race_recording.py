"""Records of a network's times: every algorithm at every size, and STOCK, on one thread.

The times are those of the processor, so other programs change them little.
"""

from __future__ import annotations

import gzip
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch

from bench.suites.networks.zoo import kernels_of
from mucudnn.arrays.devices import device_named
from mucudnn.costs.records import STOCK, STOCK_SLICE, SUCCESS
from mucudnn.measuring.buffers import measuring_extent
from mucudnn.problems.policies import usable_sizes
from mucudnn.torch.operators import device_times, stock

RECORDED_RUNS, RECORDED_MS = 7, 120.0


def make_tables(name: str, batch: int, path: Path) -> None:
    """Record a network. A record that was interrupted is continued."""
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
            with device_times.quiet("cpu"):
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
