"""The ways to make the measurements that a cache lacks: all of them, a race, or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from mucudnn._native import (
    HOST_BYTES_PER_MS,
    MOST_SLICES_IN_PLACE,
    RACE_RUNS,
    Engine,
    KernelTimer,
    most_slices_in_place,
    race_budget_ms,
)
from mucudnn.costs.records import CANNOT_ACCUMULATE, RACED, Measurement
from mucudnn.forks import no_fork
from mucudnn.measuring.buffers import Tensors, allocate_workspace
from mucudnn.measuring.candidates import transforms_in_vain
from mucudnn.measuring.race import Candidate, RaceGoal, hopeless_ms, next_candidate
from mucudnn.measuring.worklist import Task, Worklist
from mucudnn.problems.kernels import Kernel

if TYPE_CHECKING:
    from mucudnn.measuring.measure import StockOfKernel

Rows: TypeAlias = Sequence[Measurement]


class Runner:
    """A way to make the measurements that a cache lacks, chosen once for a bench.

    - `measures`: False if it makes no measurements.
    - `is_complete`: True if each micro-batch size must have measurements before a decision.
    - `is_hurried`: True if a program waits for the decision, so that small gains are not worth measurements.
    - `note`: the word that its measurements have among their notes.
    """

    measures: ClassVar[bool] = True
    is_complete: ClassVar[bool] = True
    is_hurried: bool = False
    note: ClassVar[str] = ""

    def limits(self, limits: Sequence[int | None]) -> Sequence[int | None]:
        """Return the limits on workspace to measure for, of a decision within these limits."""
        return limits

    def believes(self, measurement: Measurement) -> bool:
        """Return whether a measurement is exact enough not to be made again."""
        return True

    def admits(self, kernel: Kernel, algorithm: str) -> bool:
        """Return whether an algorithm may be measured for a kernel."""
        return True

    def bytes_beyond_caches(self, engine: Engine) -> int:
        """Return the least bytes of the tensors to measure on, if these should not fit the caches; else 0."""
        return 0

    def stock_budget_ms(self, rows: Iterable[Measurement], mini_batch: int) -> float | None:
        """Return the ms for the runs of STOCK after the first; None for as many runs as are usual."""
        return None

    def upcoming(self, engine: Engine, tasks: Sequence[Task], rows: Rows, goal: Worklist) -> Iterator[Task]:
        """Yield the tasks of one kernel to do, in order.

        The caller adds each measurement to `rows`, the kernel's measurements, before it asks for the next
        task.
        """
        raise NotImplementedError

    def timer(self, stock: StockOfKernel, workspace: int) -> ExhaustiveTimer | RaceTimer:
        """Return the timer for the engine's tasks of a kernel, which need at most `workspace` bytes."""
        raise NotImplementedError


class Replay(Runner):
    """A decision from recorded measurements alone."""

    measures: ClassVar[bool] = False


class Exhaustive(Runner):
    """The measuring of every algorithm at every size, in many runs on tensors that no cache can hold.

    The measurements also serve later decisions, so a decision's limits do not matter.
    """

    def limits(self, limits: Sequence[int | None]) -> Sequence[int | None]:
        """Return no limit."""
        return (None,)

    def believes(self, measurement: Measurement) -> bool:
        """Return whether a measurement took many runs."""
        return not measurement.is_raced

    def bytes_beyond_caches(self, engine: Engine) -> int:
        """Return the bytes that no cache of the engine's device holds."""
        return engine.bytes_beyond_caches

    def upcoming(self, engine: Engine, tasks: Sequence[Task], rows: Rows, goal: Worklist) -> Iterator[Task]:
        """Yield all tasks."""
        return iter(tasks)

    def timer(self, stock: StockOfKernel, workspace: int) -> ExhaustiveTimer:
        """Return the engine's timer."""
        return ExhaustiveTimer(stock, workspace)


@dataclass(frozen=True)
class Race(Runner):
    """A race, which skips candidates that will hardly be chosen, and takes few runs of the others."""

    is_hurried: bool = False
    is_complete: ClassVar[bool] = False
    note: ClassVar[str] = RACED

    def admits(self, kernel: Kernel, algorithm: str) -> bool:
        """Return whether an algorithm may be fast for a kernel."""
        return not transforms_in_vain(kernel, algorithm)

    def stock_budget_ms(self, rows: Iterable[Measurement], mini_batch: int) -> float | None:
        """Return the ms that a candidate gets."""
        return race_budget_ms(_whole_ms(rows, mini_batch))

    def upcoming(self, engine: Engine, tasks: Sequence[Task], rows: Rows, goal: Worklist) -> Iterator[Task]:
        """Yield the tasks that may still improve the choice."""
        left = list(tasks)
        while left and (task := _choose_task(engine, left, rows, goal)) is not None:
            left.remove(task)
            yield task

    def timer(self, stock: StockOfKernel, workspace: int) -> RaceTimer:
        """Return a timer of few runs."""
        return RaceTimer(stock, workspace)


class ExhaustiveTimer:
    """The engine's timer of a kernel. The tensors of STOCK are freed before it allocates its own."""

    def __init__(self, stock: StockOfKernel, workspace: int) -> None:
        self._stock, self._workspace = stock, workspace
        self._timer: KernelTimer | None = None

    def measure(self, task: Task) -> tuple[float, float]:
        """Return the median of the times and the distance between their quartiles. Raises EngineError."""
        if self._timer is None:
            self._stock.free()
            bench = self._stock.bench
            self._timer = bench.engine.timer(
                self._stock.kernel, workspace=self._workspace, memory_cap=bench.memory_cap
            )
        return self._timer.measure(task.micro_batch, task.algorithm, task.workspace)


class RaceTimer:
    """A timer of few runs, on the tensors of STOCK, or else on tensors that a problem's passes share."""

    def __init__(self, stock: StockOfKernel, workspace: int) -> None:
        self._stock, self._workspace = stock, workspace
        self._tensors: Tensors | None = None

    def measure(self, task: Task) -> tuple[float, float]:
        """Return the median of the times and the distance between their quartiles. Raises EngineError."""
        with no_fork:
            from statistics import median  # a decision from recorded measurements does without it

            from mucudnn.measuring.times import spread

        kernel, rows, engine = self._stock.kernel, self._stock.rows, self._stock.bench.engine
        if self._tensors is None:
            self._tensors = self._stock.tensors(engine) or self._stock.bench.tensors(kernel)
            self._memory = allocate_workspace(engine, self._workspace)
        x, w, y, *operands = self._tensors.all
        times = engine.measure(
            kernel.at(task.micro_batch), task.algorithm, x, w, y, self._memory,
            repeats=RACE_RUNS, budget_ms=race_budget_ms(_whole_ms(rows, kernel.mini_batch)),
            hopeless_ms=hopeless_ms(Candidate(task.micro_batch, task.algorithm, task.workspace), rows),
            operands=operands, least_runs=1,
        )  # fmt: skip
        return median(times), spread(times)


def _whole_ms(rows: Iterable[Measurement], mini_batch: int) -> float | None:
    """Return the least time of the whole mini-batch that was measured; None if there is none."""
    return min((m.median_ms for m in rows if m.micro_batch == mini_batch and m.median_ms), default=None)


def _choose_task(engine: Engine, tasks: Sequence[Task], rows: Rows, worklist: Worklist) -> Task | None:
    """Return the task of a kernel that is next in its race; None if the race is over."""
    kernel = tasks[0].kernel
    accumulator = engine.accumulator_size(kernel, MOST_SLICES_IN_PLACE + 1)
    in_place, candidates = most_slices_in_place(kernel), {}
    for task in tasks:
        own = CANNOT_ACCUMULATE if task.is_stock or accumulator is None else accumulator
        if (more := _bytes_to_sum(kernel, in_place, task.micro_batch, own)) is not None:
            candidates[Candidate(task.micro_batch, task.algorithm, task.workspace + more)] = task
    usable = [
        replace(row, workspace=row.workspace + more) if more else row
        for row in rows
        if row.median_ms is not None  # most algorithms of an engine cannot run
        and (more := _bytes_to_sum(kernel, in_place, row.micro_batch, row.accumulator)) is not None
    ]
    is_on_gpu = engine.kind == "cudnn"
    if is_on_gpu:  # the heuristics rank the engines of the graph API alone
        candidates = dict(
            sorted(candidates.items(), key=lambda item: not item[0].algorithm.startswith("eng"))
        )
    bytes_per_ms = HOST_BYTES_PER_MS * engine.threads if engine.kind == "host" else None
    goal = RaceGoal(kernel.mini_batch, worklist.limits, worklist.undivided, bytes_per_ms, is_on_gpu)
    chosen = next_candidate(list(candidates), usable, goal)
    return None if chosen is None else candidates[chosen]


def _bytes_to_sum(kernel: Kernel, in_place: int, micro_batch: int, accumulator: int) -> int | None:
    """Return the bytes that a division into slices of a size needs for their sum; None if there is none.

    `in_place` is the most slices that need none.
    """
    if micro_batch * in_place >= kernel.mini_batch:
        return 0
    return None if accumulator == CANNOT_ACCUMULATE else accumulator
