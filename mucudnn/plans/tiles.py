"""Tiles: parts of one sample along its depth or height, for algorithms that do not fit a whole sample.

A tile is an ordinary problem, so it is measured and kept like a micro-batch. The tiles of a sample add to its
length along the axis as micro-batches add to the mini-batch, so the same dynamic programming chooses them.
A tile's length counts in steps, which in a tile's configuration take the place of `micro_batch`.
"""

import statistics

from mucudnn._native import (
    MOST_SLICES_IN_PLACE,
    Engine,
    Problem,
    most_slices,
    tile_copies,
    tile_problem,
    tile_steps,
)
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import Comparison, describe, slices
from mucudnn.listener import Listener
from mucudnn.measuring.buffers import Tensors, allocate_workspace, extent, measuring_extent, memory_cap
from mucudnn.measuring.candidates import candidates
from mucudnn.measuring.compare import spread
from mucudnn.measuring.measure import machine_of
from mucudnn.plans.optimizer import benchmark
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import micro_batch_sizes
from mucudnn.solver import Configuration, Infeasible, MicroConfiguration, reuse_workspace

_ROUNDS = 5


def are_worth_a_try(engine: Engine, cache: Cache, problem: Problem, pass_: str, limit: int) -> bool:
    """Return whether some algorithm needs more than `limit` bytes of workspace for one sample.

    Only such an algorithm can gain from tiles.
    """
    found = candidates(engine, machine_of(engine), cache, Kernel(problem, pass_), [1])
    return any(candidate.workspace > limit for candidate in found[1])


def fastest_tiles(
    engine: Engine, cache: Cache, problem: Problem, pass_: str, policy: str, limit: int, listener: Listener
) -> Configuration | None:
    """Return the fastest tiles of one sample within `limit` bytes of workspace; None if none fit.

    Their `micro_batch` is a length in steps, their time that of one sample. Missing measurements are made.
    """
    total = tile_steps(problem, pass_)
    accumulator = engine.accumulator_size(problem, pass_, MOST_SLICES_IN_PLACE + 1)
    if accumulator is None:
        return None
    room = {
        steps: limit - accumulator - tile_copies(problem, pass_, steps)
        for steps in micro_batch_sizes(policy, total)
    }
    kernels = {
        steps: Kernel(tile_problem(problem, pass_, steps), pass_) for steps, left in room.items() if left >= 0
    }
    if not kernels:
        return None
    benchmark(
        engine, cache, list(kernels.values()), "undivided", listener,
        comparing=False, limit=max(room.values()),
    )  # fmt: skip
    parts = [
        MicroConfiguration(steps, part.algorithm, part.time_ms, limit - room[steps] + part.workspace)
        for steps, kernel in kernels.items()
        for measured in cache.measurements(machine_of(engine), kernel.problem, pass_)
        if measured.micro_batch == 1 and (part := measured.part()) is not None
    ]
    try:
        return reuse_workspace(parts, total, limit)
    except Infeasible:
        return None


def better_tiles(
    engine: Engine,
    cache: Cache,
    kernel: Kernel,
    policy: str,
    limit: int | None,
    rival: Configuration | None,
    listener: Listener,
) -> Configuration | None:
    """Return the fastest tiles within `limit` bytes of workspace, if they beat `rival`, else None.

    `rival` is a division of the mini-batch; None stands for no division that fits.
    """
    problem, pass_ = kernel.problem, kernel.pass_
    if most_slices(problem, pass_) == 1:  # tiles' filter gradients would need the same sum as slices'
        return None
    if limit is None or not are_worth_a_try(engine, cache, problem, pass_, limit):
        return None
    tiles = fastest_tiles(engine, cache, problem, pass_, policy, limit, listener)
    if tiles is None or rival is None or are_faster(engine, cache, problem, pass_, tiles, rival):
        return tiles
    return None


def are_faster(
    engine: Engine, cache: Cache, problem: Problem, pass_: str, tiles: Configuration, rival: Configuration
) -> bool:
    """Return whether tiles are faster than a division of the mini-batch.

    Both are run whole, the tiles with their copies, unless the prediction or the cache answers already. The
    cache keeps the comparison.
    """
    if tiles.time_ms * problem.mini_batch >= rival.time_ms:
        return False
    machine, texts = machine_of(engine), (describe(rival), f"tiles {describe(tiles)}")
    known = cache.comparison(machine, problem, pass_, *texts)
    if known is None:
        known = _compare(engine, problem, pass_, tiles, rival)
        cache.add_comparison(machine, problem, pass_, *texts, known)
    return known.speedup is not None and known.speedup > 1


def _compare(
    engine: Engine, problem: Problem, pass_: str, tiles: Configuration, rival: Configuration
) -> Comparison:
    measuring_extent(problem, memory_cap(engine), engine.bytes_beyond_caches)
    tensors = Tensors.random(engine, problem, extent(problem))
    divisions = [
        engine.prepare(problem, pass_, slices(configuration), tiles=configuration is tiles)
        for configuration in (tiles, rival)
    ]
    workspace = allocate_workspace(engine, max(division.workspace for division in divisions))
    times = engine.compare(divisions, tensors.x, tensors.w, tensors.y, workspace, rounds=_ROUNDS)
    (divided, divided_spread), (undivided, undivided_spread) = (
        (statistics.median(t), spread(t)) for t in times
    )
    return Comparison(undivided, divided, undivided_spread, divided_spread, None, None, None)
