"""Parts that a plan has in addition to the choice: tiles of single samples and groups of channels.

Like divisions of the mini-batch, they fit a kernel into a limit. Because they make copies, which no
measurement of an algorithm includes, they are run whole, interleaved with the division, before they are used.
"""

from collections.abc import Sequence
from dataclasses import replace

from mucudnn._native import MOST_ROUNDS, Division, Engine, second_lowest
from mucudnn.costs.records import PartsComparison
from mucudnn.errors import NothingFitsError
from mucudnn.forks import no_fork
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.buffers import Tensors, allocate_workspace, extent
from mucudnn.measuring.source import runs_stock
from mucudnn.plans.decide import LEAST_SPEEDUP, Decision, Limits, choose_within
from mucudnn.plans.parts.channels import measure_groups, propose_groups
from mucudnn.plans.parts.tiles import propose_tiles
from mucudnn.plans.plan import Parts, predicted_ms
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import ChannelGroups, Configuration, Slices, Tiling

_ROUNDS = MOST_ROUNDS
# In a hurry: the least gain that is worth a comparison, and the ms for its rounds. One round is always made.
_LEAST_GAIN, _HURRIED_MS = 0.05, 25.0


def prepare(
    engine: Engine, kernel: Kernel, chosen: Configuration | Parts, slices: Slices | None = None
) -> Division:
    """Prepare a configuration, or tiles or groups of channels. Raises EngineError, ValueError.

    `slices` prepares only some slices of a configuration, of which `kernel` must then consist.
    """
    if isinstance(chosen, ChannelGroups):
        return engine.prepare_groups(kernel, chosen.groups, chosen.of_inputs)
    return engine.prepare(kernel, slices or chosen.slices, tiles=isinstance(chosen, Tiling))


def slice_count(kernel: Kernel, chosen: Configuration | Parts) -> int:
    """Return the most slices that are added to one filter gradient."""
    if isinstance(chosen, ChannelGroups):
        return chosen.slice_count
    return len(chosen.parts) * (kernel.mini_batch if isinstance(chosen, Tiling) else 1)


def add_parts(
    bench: Bench, decisions: Sequence[Decision], policy: str, limits: Limits, *, run: bool, tiles: bool
) -> list[Decision]:
    """Return the decisions with the groups of channels, and with `tiles` the tiles, that are faster.

    With a total (WD), parts may use the workspace of the choice. A kernel whose identical kernels differ gets
    no parts. With `run` parts and choice are run whole, otherwise their predictions are compared.
    """
    allowed = {
        decision.kernel: limit
        for decision in decisions
        if not decision.shares and (limit := limits.granted(decision.chosen)) is not None
    }
    if policy == "undivided":
        return list(decisions)
    if bench.runner.measures:
        measure_groups(bench, allowed, policy)  # level by level, so that one forecast covers all kernels
    extended = []
    listener = bench.listener if run else Listener()  # a progress bar imports much
    for decision in listener.track(decisions, "Running groups of channels whole"):
        kernel, chosen = decision.kernel, decision.chosen
        if kernel in allowed:
            parts = faster_parts(bench, kernel, policy, allowed[kernel], chosen, run=run, tiles=tiles)
            if parts is not None:
                measured_ms = time_of(bench, kernel, parts, chosen) if run else None
                decision = replace(decision, parts=parts, parts_ms=measured_ms)
        extended.append(decision)
    return extended


def faster_parts(
    bench: Bench, kernel: Kernel, policy: str, limit: int | None, chosen: Configuration | None,
    *, run: bool = True, tiles: bool = True,
) -> Parts | None:  # fmt: skip
    """Return the fastest tiles or groups within `limit` bytes of workspace that are faster than `chosen`.

    `chosen` is a division of the mini-batch, or None if no division fits. Makes the missing measurements.
    """
    if limit is None or policy == "undivided":
        return None
    proposals = (
        propose_tiles(bench, kernel, policy, limit, chosen) if tiles else None,
        propose_groups(bench, kernel, policy, limit),
    )
    faster = [
        parts
        for parts in proposals
        if parts is not None and _is_faster(bench, kernel, policy, limit, parts, chosen, run)
    ]
    return min(faster, key=lambda parts: time_of(bench, kernel, parts, chosen), default=None)


def _is_faster(
    bench: Bench, kernel: Kernel, policy: str, limit: int, parts: Parts, chosen: Configuration | None,
    run: bool,
) -> bool:  # fmt: skip
    """Return whether parts within a limit are faster than the division of the mini-batch, if there is one.

    A division with STOCK counts with its predicted time alone: the parts are compared with the best
    configuration of the engine, and their time in that comparison with the predicted time of `chosen`.
    """
    if chosen is None:
        return True
    if not runs_stock(chosen):
        return are_faster(bench, kernel, parts, chosen, run)
    if not _are_promising(bench, kernel, parts, chosen):
        return False
    try:
        own = choose_within(bench.without_source().costs([kernel]), kernel, policy, limit)
    except NothingFitsError:
        return predicted_ms(kernel.mini_batch, parts) < chosen.time_ms
    return are_faster(bench, kernel, parts, own, run) and time_of(bench, kernel, parts, own) < chosen.time_ms


def are_faster(bench: Bench, kernel: Kernel, parts: Parts, division: Configuration, run: bool = True) -> bool:
    """Return whether tiles or channel groups are faster than a division of the mini-batch alone.

    Both are run whole, the tiles or groups with their copies, unless the cache has the comparison or no gain
    is predicted. Without `run` the prediction replaces a missing comparison.
    """
    known = bench.cache.parts_comparison(bench.machine, kernel, division, parts)
    if known is None and not run:
        return division.time_ms / predicted_ms(kernel.mini_batch, parts) > LEAST_SPEEDUP
    if known is None:
        if not _are_promising(bench, kernel, parts, division):
            return False
        known = _compare(bench, kernel, parts, division)
        bench.cache.add_parts_comparison(bench.machine, kernel, division, parts, known)
    return known.speedup > LEAST_SPEEDUP


def time_of(bench: Bench, kernel: Kernel, parts: Parts, division: Configuration | None) -> float:
    """Return the ms of tiles or channel groups in the comparison with a division, else the predicted ms."""
    compared = division and bench.cache.parts_comparison(bench.machine, kernel, division, parts)
    return compared.tiles_ms if compared else predicted_ms(kernel.mini_batch, parts)


def _are_promising(bench: Bench, kernel: Kernel, parts: Parts, division: Configuration) -> bool:
    """Return whether parts are predicted to be faster; in a hurry, by at least the least gain."""
    least = 1 - _LEAST_GAIN if bench.runner.is_hurried else 1
    return predicted_ms(kernel.mini_batch, parts) < division.time_ms * least


def _compare(bench: Bench, kernel: Kernel, parts: Parts, division: Configuration) -> PartsComparison:
    with no_fork:
        from mucudnn.measuring.times import spread
    engine = bench.engine
    bench.extent(kernel)
    tensors = Tensors.random(engine, kernel.problem, extent(kernel.problem))
    prepared = [prepare(engine, kernel, way) for way in (division, parts)]
    workspace = allocate_workspace(engine, max(way.workspace for way in prepared))
    rounds = _ROUNDS
    if bench.runner.is_hurried:
        taken = predicted_ms(kernel.mini_batch, parts) + division.time_ms
        rounds = max(1, min(_ROUNDS, int(_HURRIED_MS / max(taken, 1e-3))))
    times = engine.compare(prepared, tensors.x, tensors.w, tensors.y, workspace, rounds=rounds)
    bench.made["compared"] += 1
    return PartsComparison(*map(second_lowest, times), *map(spread, times))
