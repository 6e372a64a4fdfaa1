"""Both configurations of a kernel run whole, in turns, and their errors against fp64."""

import statistics
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import numpy.typing as npt

from mucudnn._native import Engine, EngineError, Memory, Problem
from mucudnn.buffers import Tensors, allocate_workspace, extent, measuring_extent
from mucudnn.kernels import Kernel
from mucudnn.records import SUCCESS, Comparison, Slices, slices
from mucudnn.solver import Configuration

_BUDGET_MS = 2000.0
_FEWEST_ROUNDS, _MOST_ROUNDS = 5, 15
_MOST_REFERENCE = 2**30  # bytes; checking more on the host would take longer than all that a GPU measures


def compare(
    engine: Engine, kernel: Kernel, undivided: Configuration | None, divided: Configuration, cap: int
) -> Comparison:
    """Run both, in turns, on the whole mini-batch; `cap` bounds the bytes that are allocated.

    Raises MucudnnError where the tensors take more than `cap`.
    """
    problem, pass_ = kernel.problem, kernel.pass_
    measuring_extent(problem, cap)
    tensors = Tensors.random(engine, problem, extent(problem))
    configurations = [divided] if undivided in (None, divided) else [divided, undivided]
    assert None not in configurations
    workspace = allocate_workspace(engine, max(c.workspace for c in configurations))
    predicted = sum(c.time_ms for c in configurations)
    rounds = int(min(max(_BUDGET_MS / max(predicted, 1e-3), _FEWEST_ROUNDS), _MOST_ROUNDS))
    divisions = [engine.prepare(problem, pass_, slices(c)) for c in configurations]
    times = engine.compare(
        divisions, tensors.x, tensors.w, tensors.y, workspace, rounds=rounds, operands=tensors.operands
    )
    workspace = None
    errors = _Errors(engine, kernel, tensors, cap)
    return Comparison(
        undivided_ms=statistics.median(times[-1]) if undivided else None,
        divided_ms=statistics.median(times[0]),
        undivided_spread_ms=spread(times[-1]) if undivided else None,
        divided_spread_ms=spread(times[0]),
        error=errors.of(slices(divided)),
        same_algorithms_error=errors.worst_undivided({part.algorithm for part in divided.parts}),
        undivided_error=errors.of(slices(undivided)) if undivided else None,
    )


def comparison_memory(problem: Problem, cap: int) -> int:
    """Bytes that comparing takes beside workspaces: tensors, and the fp64 reference where there is room."""
    tensors, reference = extent(problem).total, _reference_memory(problem)
    return tensors + reference if reference <= min(cap - tensors, _MOST_REFERENCE) else tensors


class _Errors:
    """Normalised L2 errors of configurations on the same values, against one fp64 run.

    None stands for all that the memory does not allow or that is too large to be checked, and for what does
    not run although it says so.
    """

    def __init__(self, engine: Engine, kernel: Kernel, tensors: Tensors, cap: int) -> None:
        self._engine, self._kernel, self._tensors = engine, kernel, tensors
        problem = kernel.problem
        self._room = cap - extent(problem).total
        self._known: dict[Slices, float | None] = {}
        self._reference = self._run_reference(problem.replace(data_type="f64", math="default"))

    def of(self, parts: Slices) -> float | None:
        """Of one configuration, which needs no more workspace than there is room for."""
        if parts not in self._known:
            self._known[parts] = self._run(parts)
        return self._known[parts]

    def worst_undivided(self, algorithms: set[str]) -> float | None:
        """The worst of the algorithms, each on the whole mini-batch; None where one cannot run on it."""
        errors = [
            self.of(((self._kernel.problem.mini_batch, algorithm),)) for algorithm in sorted(algorithms)
        ]
        known = [error for error in errors if error is not None]
        return max(known) if len(known) == len(errors) else None

    def _run(self, parts: Slices) -> float | None:
        if self._reference is None:
            return None
        problem, pass_, t = self._kernel.problem, self._kernel.pass_, self._tensors
        try:
            needed = self._engine.prepare(problem, pass_, parts).workspace
            if needed > self._room:
                return None
            workspace = allocate_workspace(self._engine, needed)
            self._engine.execute(problem, pass_, parts, t.x, t.w, t.y, workspace, operands=t.operands)
        except EngineError:
            return None
        memory, count = _output(problem, pass_, t)
        result = memory.read(problem.data_type, count)
        return float(np.linalg.norm(result - self._reference) / np.linalg.norm(self._reference))

    def _run_reference(self, problem: Problem) -> npt.NDArray[np.float64] | None:
        pass_ = self._kernel.pass_
        candidates = [c for c in self._engine.enumerate(problem, pass_) if c.status == SUCCESS]
        if not candidates or _reference_memory(problem) > min(self._room, _MOST_REFERENCE):
            return None
        t = Tensors.allocated(self._engine, extent(problem))
        for source, target in zip(self._tensors.all, t.all, strict=True):
            target.write("f64", source.read(self._kernel.problem.data_type, target.size // 8))
        for candidate in sorted(candidates, key=lambda candidate: candidate.workspace):
            workspace = allocate_workspace(self._engine, candidate.workspace)
            parts = [(problem.mini_batch, candidate.algorithm)]
            with suppress(EngineError):  # one that says it runs and does not: the next is tried
                self._engine.execute(problem, pass_, parts, t.x, t.w, t.y, workspace, operands=t.operands)
                memory, count = _output(problem, pass_, t)
                return memory.read("f64", count)
        return None


def _reference_memory(problem: Problem) -> int:
    """Bytes of the fp64 tensors, and as many for the arrays that their values pass through."""
    return 2 * extent(problem.replace(data_type="f64", math="default")).total


def _output(problem: Problem, pass_: str, tensors: Tensors) -> tuple[Memory, int]:
    return {
        "forward": (tensors.y, problem.y_elements),
        "backward_data": (tensors.x, problem.x_elements),
        "backward_filter": (tensors.w, problem.w_elements),
    }[pass_]


def spread(times: Sequence[float]) -> float:
    """The distance between the quartiles."""
    quartiles = statistics.quantiles(times, n=4, method="inclusive")
    return quartiles[2] - quartiles[0]
