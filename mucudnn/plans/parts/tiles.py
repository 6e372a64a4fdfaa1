"""Tiles: parts of one sample along its depth or height, for algorithms that do not fit a whole sample.

A tile is an ordinary problem, so it is measured and kept like a micro-batch. Its length counts in steps.
"""

from mucudnn._native import MOST_SLICES_IN_PLACE, most_slices, tile_copies, tile_kernel, tile_steps
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.candidates import transforms_in_vain
from mucudnn.plans.parts.parts import better
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import micro_batch_sizes
from mucudnn.solver import Configuration, Infeasible, Tile, Tiling, tile_sample

# In a hurry: the least time of an image's kernel of which tiles are measured. On two cores of an EPYC (Zen 3)
# tiles of shorter kernels save nothing in VGG-11. In GoogLeNet they save 2 ms of a training step of 0.15 s
# (N=1, 8 MiB), and their measurements take two seconds.
_LEAST_TILED_MS = 5.0


def are_worth_a_try(bench: Bench, kernel: Kernel, limit: int) -> bool:
    """Return whether some algorithm needs more than `limit` bytes of workspace for one sample.

    Only such an algorithm can gain from tiles.
    """
    return any(
        candidate.workspace > limit
        and (bench.thorough or not transforms_in_vain(kernel, candidate.algorithm))
        for candidate in bench.candidates(kernel, [1])[1]
    )


def fastest_tiles(bench: Bench, kernel: Kernel, policy: str, limit: int) -> Tiling | None:
    """Return the fastest tiles of one sample within `limit` bytes of workspace; None if none fit.

    Missing measurements are made.
    """
    bench = bench.of_engine()
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
    benchmark(bench, list(kernels.values()), "undivided", comparing=False, limits=(max(room.values()),))
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


def _gain_little(kernel: Kernel, rival: Configuration) -> bool:
    """Return whether the first step of a program has no time for tiles of a kernel.

    Tiles of images gain least, and measuring those of a short kernel takes dozens of its runs.
    """
    return kernel.problem.dims == 2 and (kernel.mini_batch > 1 or rival.time_ms < _LEAST_TILED_MS)


def better_tiles(
    bench: Bench, kernel: Kernel, policy: str, limit: int | None, rival: Configuration | None
) -> Tiling | None:
    """Return the fastest tiles within `limit` bytes of workspace, if they beat `rival`, else None.

    `rival` is a division of the mini-batch; None stands for no division that fits.
    """
    # The filter gradients of tiles would need the same sum as those of slices.
    if limit is None or most_slices(kernel) == 1:
        return None
    if bench.hurries and rival is not None and _gain_little(kernel, rival):
        return None
    if not are_worth_a_try(bench, kernel, limit):
        return None
    tiles = fastest_tiles(bench, kernel, policy, limit)
    return tiles if better(bench, kernel, policy, limit, rival, tiles) else None
