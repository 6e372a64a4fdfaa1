"""Parts that a plan has beside the choice: tiles of single samples and groups of channels.

They are an answer to a limit as divisions of the mini-batch are. They make copies, which no measurement of an
algorithm contains: so they are run whole, in turns with the division, before they are trusted.
"""

import statistics
from typing import TypeAlias

from mucudnn._native import Division, Engine
from mucudnn.costs.records import TileComparison
from mucudnn.errors import NothingFitsError
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.buffers import Tensors, allocate_workspace, extent
from mucudnn.measuring.compare import spread
from mucudnn.measuring.source import runs_stock
from mucudnn.plans.decide import choose_within
from mucudnn.plans.parts.recorded_groups import LEAST_SPEEDUP
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import ChannelGroups, Configuration, Slices, Tiling

_ROUNDS = 5
# In a hurry: the least gain that is worth a comparison, and the ms for its rounds. One round is always made.
_LEAST_GAIN, _HURRIED_MS = 0.05, 25.0

Parts: TypeAlias = Tiling | ChannelGroups
"""Parts beside the choice."""


def prepare(
    engine: Engine, kernel: Kernel, chosen: Configuration | Parts, slices: Slices | None = None
) -> Division:
    """Prepare a configuration, or parts beside it. Raises EngineError, ValueError.

    Of a configuration, `slices` may name some slices alone, which the kernel then consists of.
    """
    if isinstance(chosen, ChannelGroups):
        return engine.prepare_groups(kernel, chosen.groups, chosen.of_inputs)
    return engine.prepare(kernel, slices or chosen.slices, tiles=isinstance(chosen, Tiling))


def predicted_ms(mini_batch: int, chosen: Configuration | Parts) -> float:
    """Return the milliseconds of a whole mini-batch."""
    return chosen.time_ms * (mini_batch if isinstance(chosen, Tiling) else 1)


def slice_count(kernel: Kernel, chosen: Configuration | Parts) -> int:
    """Return the most slices that are added to one filter gradient."""
    if isinstance(chosen, ChannelGroups):
        return chosen.slice_count
    return len(chosen.parts) * (kernel.mini_batch if isinstance(chosen, Tiling) else 1)


def better(
    bench: Bench, kernel: Kernel, policy: str, limit: int, rival: Configuration | None, parts: Parts | None
) -> bool:
    """Return whether parts within a limit beat `rival`, a division of the mini-batch.

    No division stands for none that fits. One with STOCK is compared with the prediction alone: the parts are
    first compared with the best configuration of the engine, and their time in that comparison then with the
    predicted time of `rival`.
    """
    if parts is None or rival is None:
        return parts is not None
    if not runs_stock(rival):
        return are_faster(bench, kernel, parts, rival)
    if _promised_ms(bench, kernel, parts) >= rival.time_ms:
        return False
    own = _best_of_engine(bench.of_engine(), kernel, policy, limit)
    if own is not None and not are_faster(bench, kernel, parts, own):
        return False
    return time_of(bench, kernel, parts, own) < rival.time_ms


def _promised_ms(bench: Bench, kernel: Kernel, parts: Parts) -> float:
    """Return the ms that a rival must need more of; in a hurry they include the least gain."""
    return predicted_ms(kernel.mini_batch, parts) / (1 - _LEAST_GAIN if bench.hurries else 1)


def _best_of_engine(bench: Bench, kernel: Kernel, policy: str, limit: int) -> Configuration | None:
    try:
        return choose_within(bench.costs([kernel]), kernel, policy, limit)
    except NothingFitsError:
        return None


def time_of(bench: Bench, kernel: Kernel, parts: Parts, rival: Configuration | None) -> float:
    """Return the ms of tiles or channel groups, as compared with `rival`; else the predicted ms."""
    compared = rival and bench.cache.tile_comparison(bench.machine, kernel, rival, parts)
    return compared.tiles_ms if compared else predicted_ms(kernel.mini_batch, parts)


def are_faster(bench: Bench, kernel: Kernel, parts: Parts, rival: Configuration) -> bool:
    """Return whether tiles or channel groups are faster than a division of the mini-batch alone.

    Both are run whole, the tiles or groups with their copies, unless the prediction or the cache answers
    already. The cache keeps the comparison.
    """
    if _promised_ms(bench, kernel, parts) >= rival.time_ms:
        return False
    known = bench.cache.tile_comparison(bench.machine, kernel, rival, parts)
    if known is None:
        known = _compare(bench, kernel, parts, rival)
        bench.cache.add_tile_comparison(bench.machine, kernel, rival, parts, known)
    return known.speedup > LEAST_SPEEDUP


def _compare(bench: Bench, kernel: Kernel, parts: Parts, division: Configuration) -> TileComparison:
    engine = bench.engine
    bench.extent(kernel)
    tensors = Tensors.random(engine, kernel.problem, extent(kernel.problem))
    prepared = [prepare(engine, kernel, one) for one in (division, parts)]
    workspace = allocate_workspace(engine, max(one.workspace for one in prepared))
    rounds = _ROUNDS
    if bench.hurries:
        taken = predicted_ms(kernel.mini_batch, parts) + division.time_ms
        rounds = max(1, min(_ROUNDS, int(_HURRIED_MS / max(taken, 1e-3))))
    times = engine.compare(prepared, tensors.x, tensors.w, tensors.y, workspace, rounds=rounds)
    return TileComparison(*map(statistics.median, times), *map(spread, times))
