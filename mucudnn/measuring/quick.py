"""The measurements of a race: few runs, on tensors that all passes of a problem share."""

from mucudnn._native import HOST_BYTES_PER_MS, RACE_RUNS, Engine, race_budget_ms
from mucudnn.measuring.buffers import Tensors, allocate_workspace
from mucudnn.problems.kernels import Kernel


def bytes_per_ms(engine: Engine) -> float | None:
    """Return the fastest rate at which an algorithm of an engine fills its workspace; None if unknown."""
    return HOST_BYTES_PER_MS * engine.threads if engine.kind == "host" else None


def budget_ms(rival_ms: float | None) -> float:
    """Return the ms for the runs of a candidate, with the time of the undivided rival if there is one."""
    return race_budget_ms(rival_ms)


class QuickTimer:
    """The tensors of one kernel, on which its algorithms are timed in few runs."""

    def __init__(self, engine: Engine, kernel: Kernel, tensors: Tensors, workspace: int) -> None:
        self._engine, self._kernel, self._tensors = engine, kernel, tensors
        self._workspace = allocate_workspace(engine, workspace)

    def measure(self, micro_batch: int, algorithm: str, hopeless_ms: float, budget_ms: float) -> list[float]:
        """Return the ms of single runs. One run above `hopeless_ms` is enough. Raises EngineError."""
        x, w, y, *operands = self._tensors.all
        return self._engine.measure(
            self._kernel.at(micro_batch), algorithm, x, w, y, self._workspace,
            repeats=RACE_RUNS, budget_ms=budget_ms, hopeless_ms=hopeless_ms, operands=operands, least_runs=1,
        )  # fmt: skip
