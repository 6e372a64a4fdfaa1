"""Comparisons of a kernel's divided and undivided configurations: interleaved times, errors against fp64."""

import math
from collections.abc import Sequence

import numpy as np

from mucudnn._native import MOST_ROUNDS, Engine, EngineError, second_lowest
from mucudnn.costs.records import Comparison
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.buffers import Tensors, allocate_workspace, extent
from mucudnn.measuring.reference import Reference, piece_of
from mucudnn.measuring.source import runs_stock
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration, Slices

_BUDGET_MS = 2000.0
_FEWEST_ROUNDS = 5


def compare(
    bench: Bench, kernel: Kernel, undivided: Configuration | None, divided: Configuration
) -> tuple[Comparison, bool]:
    """Run both configurations interleaved on the whole mini-batch, and return their times and errors.

    The second value says that other programs disturbed too many runs for a choice. The
    errors are None if STOCK runs part of either, because its numerics are the caller's own. Raises
    MucudnnError if the tensors do not fit in the bench's memory.
    """
    engine = bench.engine
    bench.extent(kernel)
    configurations = [divided] if undivided is None or undivided == divided else [divided, undivided]
    predicted = sum(c.time_ms for c in configurations)
    rounds = int(min(max(_BUDGET_MS / max(predicted, 1e-3), _FEWEST_ROUNDS), MOST_ROUNDS))
    if bench.source is not None and any(map(runs_stock, configurations)):
        times, is_busy = bench.source.compare(engine, kernel, configurations, rounds)
        return _make_comparison(times, undivided is not None, None, None, None), is_busy
    tensors = Tensors.random(engine, kernel.problem, extent(kernel.problem))
    workspace = allocate_workspace(engine, max(c.workspace for c in configurations))
    divisions = [engine.prepare(kernel, c.slices) for c in configurations]
    times, is_busy = engine.compare(
        divisions, tensors.x, tensors.w, tensors.y, workspace, rounds=rounds, operands=tensors.operands
    )
    workspace = None
    errors = _Errors(engine, kernel, tensors, bench.memory_cap)
    # The largest error of the algorithms, each run undivided; None if any error is unknown.
    each = [
        errors.measure(((kernel.mini_batch, algorithm),))
        for algorithm in sorted({part.algorithm for part in divided.parts})
    ]
    comparison = _make_comparison(
        times,
        undivided is not None,
        errors.measure(divided.slices),
        None if None in each else max(error for error in each if error is not None),
        errors.measure(undivided.slices) if undivided else None,
    )
    return comparison, is_busy


def _make_comparison(
    times: Sequence[Sequence[float]], has_undivided: bool, *errors: float | None
) -> Comparison:
    """Return a comparison; `times` has those of the divided configuration first, of the undivided last."""
    divided, *_, undivided = ((second_lowest(runs), spread(runs)) for runs in (*times, times[-1]))
    undivided_ms, undivided_spread = undivided if has_undivided else (None, None)
    return Comparison(undivided_ms, divided[0], undivided_spread, divided[1], *errors)


def spread(times: Sequence[float]) -> float:
    """Return the distance between the quartiles of times, in their unit."""
    low, high = np.quantile(times, (0.25, 0.75))
    return float(high - low)


def comparison_memory(kernel: Kernel, cap: int) -> int:
    """Return the bytes of a comparison's tensors and, where `cap` allows, of its fp64 reference."""
    tensors = extent(kernel.problem).total
    piece = piece_of(kernel, cap - tensors)
    return tensors + (piece.memory if piece else 0)


class _Errors:
    """Normalised L2 errors of configurations on the same values, against one reference in fp64.

    For a large kernel only a piece of the results is compared: see `mucudnn.measuring.reference`. An error is
    None if the configuration fails or exceeds the memory, or if its results are not finite, as can happen in
    fp16.
    """

    def __init__(self, engine: Engine, kernel: Kernel, tensors: Tensors, cap: int) -> None:
        self._engine, self._kernel, self._tensors = engine, kernel, tensors
        self._room = cap - extent(kernel.problem).total
        self._known: dict[Slices, float | None] = {}
        piece = piece_of(kernel, self._room)
        self._reference = Reference(engine, kernel, tensors, piece) if piece else None
        self._expected = self._reference.expected() if self._reference else None

    def measure(self, parts: Slices) -> float | None:
        """Return the error of a configuration, which runs only once."""
        if parts not in self._known:
            self._known[parts] = self._run(parts)
        return self._known[parts]

    def _run(self, parts: Slices) -> float | None:
        if self._reference is None or self._expected is None:
            return None
        kernel, t = self._kernel, self._tensors
        try:
            needed = self._engine.prepare(kernel, parts).workspace
            if needed > self._room:
                return None
            workspace = allocate_workspace(self._engine, needed)
            self._engine.execute(kernel, parts, t.x, t.w, t.y, workspace, operands=t.operands)
        except EngineError:
            return None
        distance = float(np.linalg.norm(self._reference.actual() - self._expected))
        scale = float(np.linalg.norm(self._expected))
        return distance / scale if scale and math.isfinite(distance) else None
