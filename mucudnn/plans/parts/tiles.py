"""Tiles: parts of one sample along its depth or height, for algorithms that do not fit a whole sample.

A tile is an ordinary problem, so it is measured and kept like a micro-batch. Its length counts in steps.
"""

from mucudnn._native import MOST_SLICES_IN_PLACE, most_slices, tile_copies, tile_kernel, tile_steps
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import micro_batch_sizes
from mucudnn.solver import Configuration, Infeasible, Tile, Tiling, tile_sample

# In a hurry, tiles are measured only for image kernels that take at least this long. On two cores of an EPYC
# (Zen 3) tiles of shorter kernels save nothing in VGG-11. In GoogLeNet they save 2 ms of a training step of
# 0.15 s (N=1, 8 MiB), while their measurements take two seconds.
_LEAST_TILED_MS = 5.0


def propose_tiles(
    bench: Bench, kernel: Kernel, policy: str, limit: int, chosen: Configuration | None
) -> Tiling | None:
    """Return the fastest tiles within `limit` bytes of workspace, or None if they cannot gain or do not fit.

    `chosen` is the division of the mini-batch to compare them with, if any fits. Makes missing measurements.
    """
    # The filter gradients of tiles need the same sum as those of slices. Tiles gain only if some algorithm
    # does not fit the limit for one sample.
    if most_slices(kernel) == 1 or not bench.exceeding(kernel, 1, limit):
        return None
    if bench.runner.is_hurried and chosen is not None and _gain_little(kernel, chosen):
        return None
    return fastest_tiles(bench, kernel, policy, limit)


def fastest_tiles(bench: Bench, kernel: Kernel, policy: str, limit: int) -> Tiling | None:
    """Return the fastest tiles of one sample within `limit` bytes, or None. Makes missing measurements."""
    bench = bench.without_source()
    total = tile_steps(kernel)
    accumulator = bench.engine.accumulator_size(kernel, MOST_SLICES_IN_PLACE + 1)
    if accumulator is None:
        return None
    room = {
        steps: limit - accumulator - tile_copies(kernel, steps) for steps in micro_batch_sizes(policy, total)
    }
    kernels = {steps: tile_kernel(kernel, steps) for steps, left in room.items() if left >= 0}
    if not kernels:
        return None
    benchmark(bench, list(kernels.values()), "undivided", limits=(max(room.values()),))
    costs = bench.costs(kernels.values())
    tiles = [
        Tile(steps, part.algorithm, part.time_ms, limit - room[steps] + part.workspace)
        for steps, kernel in kernels.items()
        for measured in costs.measurements[kernel]
        if measured.micro_batch == 1 and (part := measured.part()) is not None
    ]
    try:
        return tile_sample(tiles, total, limit)
    except Infeasible:
        return None


def _gain_little(kernel: Kernel, chosen: Configuration) -> bool:
    """Return whether tiles of a kernel gain too little to be measured in the first step of a program.

    Tiles of images gain least, and measuring the tiles of a short kernel takes dozens of its runs.
    """
    return kernel.problem.dims == 2 and (kernel.mini_batch > 1 or chosen.time_ms < _LEAST_TILED_MS)
