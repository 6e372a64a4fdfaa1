"""One sample in tiles within 64 MiB, against the fastest whole algorithm within the limit and without one."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from itertools import chain

from bench.lib.host import host_bench, run_whole
from bench.lib.record import Record
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.plans.parts.tiles import fastest_tiles
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.sources import Flags, read_kernels
from mucudnn.solver import Configuration, MicroConfiguration

LIMIT = 64 * 2**20
MOST_FLOPS = 1e11  # about one second a run
ROUNDS = 3


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Compare the kernels of a 3-D U-Net and of an image decoder.

    Kernels whose fastest algorithm fits into the limit anyway have no figure: tiles cannot help them.
    """
    networks = (read_kernels(name, Flags(batch=1), ("forward",)) for name in ("unet3d", "image_vae"))
    with host_bench() as bench:
        for kernel in chain.from_iterable(networks):
            if kernel.problem.flops <= MOST_FLOPS:
                yield from _kernel(bench, kernel)


def _kernel(bench: Bench, kernel: Kernel) -> list[Record]:
    benchmark(bench, [kernel], "undivided", comparing=False)
    measured = bench.costs([kernel]).measurements[kernel]
    whole = [part for m in measured if (part := m.part()) is not None]
    fastest = min(whole, key=_time)
    within = min((part for part in whole if part.workspace <= LIMIT), key=_time)
    if fastest == within:
        return []
    tiles = fastest_tiles(bench, kernel, "power_of_two", LIMIT)
    assert tiles is not None
    ways = (tiles, Configuration((within,)), Configuration((fastest,)))
    times = run_whole(bench.engine, kernel, ways, ROUNDS).values()
    tiled_ms, within_ms, fastest_ms = map(statistics.median, times)
    details = {
        "tiles": f"{len(tiles.parts)} of up to {tiles.parts[0].steps} steps",
        "tile_algorithm": tiles.parts[0].algorithm,
        "tile_workspace_mib": round(tiles.workspace / 2**20, 1),
        "within": within.algorithm,
        "unlimited": fastest.algorithm,
        "unlimited_workspace_mib": round(fastest.workspace / 2**20, 1),
        "ms": [round(ms, 1) for ms in (tiled_ms, within_ms, fastest_ms)],
    }
    return [
        Record("tiles", kernel.name, "speedup within the limit", within_ms / tiled_ms, "ratio", details),
        Record("tiles", kernel.name, "time of the unlimited", tiled_ms / fastest_ms, "ratio", details),
    ]


def _time(part: MicroConfiguration) -> float:
    return part.time_ms
