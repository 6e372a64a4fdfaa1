"""Tiles: parts of one sample along its depth or height, for algorithms that do not fit a whole sample.

A tile is an ordinary problem, so it is measured and kept like a micro-batch. Its length counts in steps.
"""

import statistics

from mucudnn._native import MOST_SLICES_IN_PLACE, most_slices, tile_copies, tile_kernel, tile_steps
from mucudnn.costs.records import TileComparison
from mucudnn.errors import NothingFitsError
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.buffers import Tensors, allocate_workspace, extent
from mucudnn.measuring.compare import spread
from mucudnn.measuring.source import runs_stock
from mucudnn.plans.decide import Limits, decide
from mucudnn.plans.optimizer import benchmark
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import micro_batch_sizes
from mucudnn.solver import Configuration, Infeasible, Tile, Tiling, tile_sample

_ROUNDS = 5


def are_worth_a_try(bench: Bench, kernel: Kernel, limit: int) -> bool:
    """Return whether some algorithm needs more than `limit` bytes of workspace for one sample.

    Only such an algorithm can gain from tiles.
    """
    return any(candidate.workspace > limit for candidate in bench.candidates(kernel, [1])[1])


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


def better_tiles(
    bench: Bench, kernel: Kernel, policy: str, limit: int | None, rival: Configuration | None
) -> Tiling | None:
    """Return the fastest tiles within `limit` bytes of workspace, if they beat `rival`, else None.

    `rival` is a division of the mini-batch; None stands for no division that fits.
    """
    # The filter gradients of tiles would need the same sum as those of slices.
    if limit is None or most_slices(kernel) == 1:
        return None
    # The first step of a program has no time for tiles of images, which gain least.
    hurries = bench.source is not None and not bench.thorough
    if hurries and rival is not None and kernel.mini_batch > 1 and kernel.problem.dims == 2:
        return None
    if not are_worth_a_try(bench, kernel, limit):
        return None
    if rival is not None and runs_stock(rival):
        return _tiles_beside_stock(bench.of_engine(), kernel, policy, limit, rival)
    tiles = fastest_tiles(bench, kernel, policy, limit)
    if tiles is None or rival is None or are_faster(bench, kernel, tiles, rival):
        return tiles
    return None


def _tiles_beside_stock(
    bench: Bench, kernel: Kernel, policy: str, limit: int, rival: Configuration
) -> Tiling | None:
    """Return the tiles that `better_tiles` finds beside a configuration that has STOCK.

    The tiles are first compared with the best configuration of the engine alone, and their time in that
    comparison then with the predicted time of `rival`.
    """
    try:
        [decision] = decide(bench.costs([kernel]), policy, Limits(workspace=limit), bench.listener)
    except NothingFitsError:
        own = None
    else:
        own = decision.chosen
    tiles = better_tiles(bench, kernel, policy, limit, own)
    if tiles is None:
        return None
    compared = own and bench.cache.tile_comparison(bench.machine, kernel, own, tiles)
    time_ms = compared.tiles_ms if compared else tiles.time_ms * kernel.mini_batch
    return tiles if time_ms < rival.time_ms else None


def are_faster(bench: Bench, kernel: Kernel, tiles: Tiling, rival: Configuration) -> bool:
    """Return whether tiles are faster than a division of the mini-batch.

    Both are run whole, the tiles with their copies, unless the prediction or the cache answers already. The
    cache keeps the comparison.
    """
    if tiles.time_ms * kernel.mini_batch >= rival.time_ms:
        return False
    known = bench.cache.tile_comparison(bench.machine, kernel, rival, tiles)
    if known is None:
        known = _compare(bench, kernel, tiles, rival)
        bench.cache.add_tile_comparison(bench.machine, kernel, rival, tiles, known)
    return known.speedup > 1


def _compare(bench: Bench, kernel: Kernel, tiles: Tiling, division: Configuration) -> TileComparison:
    engine = bench.engine
    bench.extent(kernel)
    tensors = Tensors.random(engine, kernel.problem, extent(kernel.problem))
    prepared = [
        engine.prepare(kernel, division.slices),
        engine.prepare(kernel, tiles.slices, tiles=True),
    ]
    workspace = allocate_workspace(engine, max(one.workspace for one in prepared))
    times = engine.compare(prepared, tensors.x, tensors.w, tensors.y, workspace, rounds=_ROUNDS)
    return TileComparison(*map(statistics.median, times), *map(spread, times))
