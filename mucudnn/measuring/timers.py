"""The timers of one kernel: the framework's own operator, and the engine's algorithms in many or few runs."""

from math import inf

from mucudnn._native import RACE_RUNS, Engine, KernelTimer, Timing, UnfinishedError, race_budget_ms
from mucudnn.costs.records import STOCK_SLICE, SUCCESS, Measurement
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.buffers import Tensors, allocate_workspace
from mucudnn.measuring.race import Candidate, hopeless_ms
from mucudnn.measuring.runners import Task, whole_ms_of
from mucudnn.measuring.source import StockTimer, timed
from mucudnn.problems.kernels import Kernel


class StockOfKernel:
    """The measurements of STOCK for one kernel, on the framework's tensors."""

    def __init__(self, bench: Bench, kernel: Kernel, rows: list[Measurement]) -> None:
        self.bench, self.kernel, self.rows = bench, kernel, rows
        self._timer: StockTimer | None = None

    def measure(self, task: Task) -> list[Measurement]:
        """Measure STOCK at one size, and cache the time, or the failure if the framework cannot run it.

        Return the measurement, or an empty list if memory or time ran short, which says nothing about the
        kernel.
        """
        source, kernel = self.bench.source, self.kernel
        assert source is not None
        is_raced = not self.bench.runner.is_complete
        try:
            timing = self._get_timer().measure(
                task.micro_batch,
                is_slice=task.algorithm == STOCK_SLICE,
                budget_ms=race_budget_ms(whole_ms_of(self.rows, kernel.mini_batch)) if is_raced else None,
            )
        except (MemoryError, UnfinishedError):
            return []
        except RuntimeError as error:
            status = str(error).partition("\n")[0] or type(error).__name__
            row = Measurement(task.micro_batch, task.algorithm, status, 0)
        else:
            row = Measurement(
                task.micro_batch, task.algorithm, SUCCESS, timing.workspace, self.bench.runner.note
            )
            row = timed(row, timing)
        self.bench.cache.add(source.machine, kernel, row)
        return [row]

    def tensors(self, engine: Engine) -> Tensors | None:
        """Return the framework's tensors for an engine; None if the framework has none."""
        if self.bench.source is None or self.kernel.problem.epilogue:
            return None
        try:
            return self._get_timer().tensors(engine)
        except (RuntimeError, MemoryError):
            return None

    def _get_timer(self) -> StockTimer:
        source = self.bench.source
        assert source is not None
        self._timer = self._timer or source.timer(self.kernel, self.bench.extent(self.kernel).samples)
        return self._timer

    def free(self) -> None:
        """Free the tensors."""
        self._timer = None


class ExhaustiveTimer:
    """The engine's own timer, which allocates its tensors after those of STOCK are freed."""

    def __init__(self, stock: StockOfKernel, workspace: int) -> None:
        self.stock, self._workspace = stock, workspace
        self._timer: KernelTimer | None = None

    def measure(self, task: Task) -> Timing:
        """Return the times of the engine's algorithm. Raises EngineError."""
        if self._timer is None:
            self.stock.free()
            bench = self.stock.bench
            self._timer = bench.engine.timer(
                self.stock.kernel, workspace=self._workspace, memory_cap=bench.memory_cap
            )
        return self._timer.measure(task.micro_batch, task.algorithm, task.workspace)


class RaceTimer:
    """A timer with few runs, on the tensors of STOCK or else on those that a problem's passes share."""

    def __init__(self, stock: StockOfKernel, workspace: int) -> None:
        self.stock = stock
        self.workspace = workspace  # the most bytes that an algorithm may need
        self.has_raced = False  # True once a measurement may have made candidates close
        self._tensors: Tensors | None = None

    def measure(self, task: Task) -> Timing:
        """Return the times of the engine's algorithm. Raises EngineError, UnfinishedError."""
        rows = self.stock.rows
        return self._measure(
            task, RACE_RUNS, race_budget_ms(whole_ms_of(rows, task.kernel.mini_batch)),
            hopeless_ms(Candidate(task.micro_batch, task.algorithm, task.workspace), rows),
        )  # fmt: skip

    @property
    def threads(self) -> int:
        """The threads of the engine."""
        return self.stock.bench.engine.threads

    def measure_once(self, row: Measurement) -> Timing:
        """Return the time of one run, after an uncounted one. Raises EngineError, UnfinishedError."""
        return self._measure(row, 1, 0.0, inf)

    def _measure(self, what: Task | Measurement, runs: int, budget_ms: float, hopeless_ms: float) -> Timing:
        kernel, engine = self.stock.kernel, self.stock.bench.engine
        if self._tensors is None:
            self._tensors = self.stock.tensors(engine) or self.stock.bench.tensors(kernel)
            self._memory = allocate_workspace(engine, self.workspace)
        x, w, y, *operands = self._tensors.all
        return engine.measure(
            kernel.at(what.micro_batch), what.algorithm, x, w, y, self._memory,
            repeats=runs, budget_ms=budget_ms, hopeless_ms=hopeless_ms, operands=operands, least_runs=1,
            most_wait_ms=self.stock.bench.budget.most_wait_ms,
        )  # fmt: skip
