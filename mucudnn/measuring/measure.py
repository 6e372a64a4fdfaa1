"""The benchmark driver: it finds the measurements that the cache lacks, makes them, and keeps them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, islice

from mucudnn._native import MOST_SLICES_IN_PLACE, Engine, EngineError, KernelTimer, most_slices_in_place
from mucudnn.costs.records import CANNOT_ACCUMULATE, RACED, STOCK_SLICE, SUCCESS, Machine, Measurement
from mucudnn.forks import no_fork
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.buffers import Tensors
from mucudnn.measuring.candidates import transforms_in_vain
from mucudnn.measuring.quick import QuickTimer, budget_ms, bytes_per_ms
from mucudnn.measuring.race import Candidate, Race, next_candidate, rival_ms
from mucudnn.measuring.source import StockTimer, stock_row
from mucudnn.problems.descriptor import problem_key
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import usable_sizes
from mucudnn.sizes import format_size


@dataclass(frozen=True)
class Task:
    """One measurement to make, by the source of STOCK if `is_stock`, else by the engine."""

    kernel: Kernel
    micro_batch: int
    algorithm: str
    workspace: int
    notes: str
    is_stock: bool = False


@dataclass
class Worklist:
    """The measurements to make, and those that need too much memory."""

    tasks: list[Task] = field(default_factory=list)
    beyond_memory: list[Task] = field(default_factory=list)
    limits: Sequence[int | None] = (None,)  # a race finds a choice within each of them
    rivals: bool = False  # True if a race also measures an algorithm undivided, for comparison
    memory: int = 0  # the most bytes that measuring allocates at once


def find_missing(
    bench: Bench,
    kernels: Sequence[Kernel],
    policy: str,
    limits: Sequence[int | None] = (None,),
    *,
    rivals: bool = False,
) -> Worklist:
    """Find the candidates of these kernels that the cache has no measurement of.

    The engine is asked for candidates that the cache does not know. Candidates that need more workspace than
    the last of the ascending `limits` are left out, in bytes, where None is no limit. Those that do not fit
    the bench's memory with their tensors are listed apart. With `rivals` a race also measures an algorithm
    undivided. Raises MucudnnError if a kernel's tensors alone do not fit the memory.
    """
    missing, limit = Worklist(limits=limits, rivals=rivals), limits[-1]
    for kernel in kernels:
        sizes = usable_sizes(policy, kernel)
        rows = _rows(bench, kernel)
        known = _places(bench, rows)
        if not {size for size, _ in known}.issuperset(sizes):
            bench.extent(kernel)
        tasks = _stock_tasks(bench, kernel, sizes, known)
        tasks += [
            Task(kernel, size, *candidate)
            for size, listed in bench.candidates(kernel, sizes).items()
            for candidate in listed
            if (size, candidate.algorithm) not in known
            and (limit is None or candidate.workspace <= limit)
            and (bench.thorough or not transforms_in_vain(kernel, candidate.algorithm))
        ]
        if not bench.thorough and _next_of(bench, rows, kernel, tasks, missing) is None:
            continue
        if tasks:
            tensors, cap = bench.extent(kernel).total, bench.memory_cap
            fitting = [task for task in tasks if tensors + task.workspace <= cap]
            missing.tasks += fitting
            missing.beyond_memory += [task for task in tasks if tensors + task.workspace > cap]
            needed = tensors + max((task.workspace for task in fitting), default=0)
            missing.memory = max(missing.memory, needed)
    return missing


def measure(bench: Bench, missing: Worklist, *, most: int | None = None) -> int:
    """Make the measurements, `most` at most, and keep each in the cache at once.

    Returns the number that this process made. Other processes that use the cache may make some of them.
    """
    if missing.beyond_memory:
        worst = max(missing.beyond_memory, key=lambda task: task.workspace)
        bench.listener.message(
            f"Not measured: {len(missing.beyond_memory)} algorithms that need too much memory, such as "
            f"{worst.algorithm} for {worst.kernel} at {worst.micro_batch} with "
            f"{format_size(worst.workspace)} of workspace"
        )
    largest: dict[Kernel, int] = {}
    for task in missing.tasks:
        largest[task.kernel] = max(task.workspace, largest.get(task.kernel, 0))
    rows: dict[Kernel, list[Measurement]] = {}  # the race of each kernel reads them
    unmeasured = islice(_claim_tasks(bench, missing, rows), most)
    progress = bench.listener.track(unmeasured, "Measuring", total=len(missing.tasks))
    made = 0
    for kernel, tasks in groupby(progress, key=lambda task: task.kernel):
        made += _measure_kernel(bench, kernel, tasks, largest[kernel], rows[kernel])
    return made


def _places(bench: Bench, rows: Iterable[Measurement]) -> set[tuple[int, str]]:
    """Return the (micro-batch size, algorithm) pairs of rows that are exact enough for the bench."""
    return {(m.micro_batch, m.algorithm) for m in rows if not (bench.thorough and m.is_raced)}


def _stock_tasks(
    bench: Bench, kernel: Kernel, sizes: Sequence[int], known: set[tuple[int, str]]
) -> list[Task]:
    """Return the tasks of the source. They come first, so that its tensors are freed before the engine's."""
    if bench.source is None or kernel.problem.epilogue:
        return []
    return [
        Task(kernel, size, name, 0, "", is_stock=True)
        for size in reversed(sizes)
        if (size, name := stock_row(kernel, size)) not in known
    ]


def _claim_tasks(bench: Bench, missing: Worklist, rows: dict[Kernel, list[Measurement]]) -> Iterator[Task]:
    """Claim one kernel after the other, and yield its tasks that no other process has done by then.

    In a race, the caller adds each measurement to the `rows` of its kernel before it asks for the next task.
    """
    kernels = [
        (kernel, list(group)) for kernel, group in groupby(missing.tasks, key=lambda task: task.kernel)
    ]
    for kernel, group in bench.cache.claimed(kernels, lambda item: _name_claim(bench.machine, item[0])):
        rows[kernel] = _rows(bench, kernel)
        known = _places(bench, rows[kernel])
        left = [task for task in group if (task.micro_batch, task.algorithm) not in known]
        if bench.thorough:
            yield from left
            continue
        while (task := _next_of(bench, rows[kernel], kernel, left, missing)) is not None:
            left.remove(task)
            yield task


def _rows(bench: Bench, kernel: Kernel) -> list[Measurement]:
    """Return all measurements of a kernel: those of the engine and those of STOCK."""
    rows = bench.cache.measurements(bench.machine, kernel)
    if bench.source is not None:
        rows += bench.cache.measurements(bench.source.machine, kernel)
    return rows


def _next_of(
    bench: Bench, rows: Sequence[Measurement], kernel: Kernel, tasks: Sequence[Task], missing: Worklist
) -> Task | None:
    """Return the task that is next in the race; None if the race is over."""
    accumulator = bench.engine.accumulator_size(kernel, MOST_SLICES_IN_PLACE + 1)
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
    is_on_gpu = bench.engine.kind == "cudnn"
    if is_on_gpu:  # the heuristics rank the engines of the graph API alone
        candidates = dict(
            sorted(candidates.items(), key=lambda item: not item[0].algorithm.startswith("eng"))
        )
    rate = bytes_per_ms(bench.engine)
    race = Race(kernel.mini_batch, missing.limits, missing.rivals, rate, is_on_gpu)
    found = next_candidate(list(candidates), usable, race)
    return None if found is None else candidates[found]


def _bytes_to_sum(kernel: Kernel, in_place: int, micro_batch: int, accumulator: int) -> int | None:
    """Return the bytes that a division into slices of a size needs for their sum; None if there is none.

    `in_place` is the most slices that need none.
    """
    if micro_batch * in_place >= kernel.mini_batch:
        return 0
    return None if accumulator == CANNOT_ACCUMULATE else accumulator


def _name_claim(machine: Machine, kernel: Kernel) -> str:
    return f"measure {machine.identity} {problem_key(kernel.problem)} {kernel.pass_}"


def _measure_kernel(
    bench: Bench, kernel: Kernel, tasks: Iterable[Task], workspace: int, rows: list[Measurement]
) -> int:
    """Measure the tasks of one kernel, on tensors that are freed afterwards. Returns the number of tasks."""
    make_timer = _ThoroughTimer if bench.thorough else _RacingTimer
    stock, made = _StockOfKernel(bench, kernel, rows), 0
    timer = make_timer(bench, kernel, workspace, stock, rows)
    for made, task in enumerate(tasks, 1):  # noqa: B007 (the last value is the number of tasks)
        if task.is_stock:
            rows += stock.measure(task)
            continue
        times, status = None, SUCCESS
        try:
            times = timer.measure(task)
        except EngineError as error:
            # A broken device raises here too. Then the failure says nothing about the algorithm.
            bench.engine.available_memory  # noqa: B018
            status = _read_status(error)
        rows.append(_make_measurement(bench, task, status, times))
        bench.cache.add(bench.machine, kernel, rows[-1])
    return made


class _ThoroughTimer:
    """The engine's timer, which takes many runs on tensors that the caches cannot hold."""

    def __init__(
        self, bench: Bench, kernel: Kernel, workspace: int, stock: "_StockOfKernel", _: object
    ) -> None:
        self._bench, self._kernel, self._workspace, self._stock = bench, kernel, workspace, stock
        self._timer: KernelTimer | None = None

    def measure(self, task: Task) -> tuple[float, float]:
        """Return the median of the times and the distance between their quartiles. Raises EngineError."""
        if self._timer is None:
            self._stock.free()
            cap = self._bench.memory_cap
            self._timer = self._bench.engine.timer(self._kernel, workspace=self._workspace, memory_cap=cap)
        return self._timer.measure(task.micro_batch, task.algorithm, task.workspace)


class _RacingTimer:
    """A timer that takes few runs, on the tensors of STOCK if there are some."""

    def __init__(
        self,
        bench: Bench,
        kernel: Kernel,
        workspace: int,
        stock: "_StockOfKernel",
        rows: list[Measurement],
    ) -> None:
        self._bench, self._kernel, self._workspace, self._stock = bench, kernel, workspace, stock
        self._rows = rows
        self._timer: QuickTimer | None = None

    def measure(self, task: Task) -> tuple[float, float]:
        """Return the median of the times and the distance between their quartiles. Raises EngineError."""
        with no_fork:
            from statistics import median  # a decision from recorded measurements does without it

            from mucudnn.measuring.compare import spread  # it imports numpy

        if self._timer is None:
            engine = self._bench.engine
            tensors = self._stock.tensors(engine) or self._bench.tensors(self._kernel)
            self._timer = QuickTimer(engine, self._kernel, tensors, self._workspace)
        hopeless_ms = rival_ms(Candidate(task.micro_batch, task.algorithm, task.workspace), self._rows)
        budget = budget_ms(whole_ms(self._rows, self._kernel.mini_batch))
        times = self._timer.measure(task.micro_batch, task.algorithm, hopeless_ms, budget)
        return median(times), spread(times)


class _StockOfKernel:
    """The measurements of STOCK of one kernel, on tensors of the framework."""

    def __init__(self, bench: Bench, kernel: Kernel, rows: list[Measurement]) -> None:
        self._bench, self._kernel, self._rows = bench, kernel, rows
        self._timer: StockTimer | None = None

    def measure(self, task: Task) -> list[Measurement]:
        """Measure STOCK at one size. A kernel that the framework cannot run is kept as a failure.

        Return the measurement; none after a passing lack of memory, which says nothing about the kernel.
        """
        source, kernel = self._bench.source, self._kernel
        assert source is not None
        try:
            is_slice, budget = task.algorithm == STOCK_SLICE, None
            if not self._bench.thorough:
                budget = budget_ms(whole_ms(self._rows, kernel.mini_batch))
            found = self._made_timer().measure(task.micro_batch, is_slice=is_slice, budget_ms=budget)
        except MemoryError:
            return []
        except RuntimeError as error:
            row = Measurement(task.micro_batch, task.algorithm, _first_line(error), 0)
        else:
            # The framework's slices are summed in the output's own type, so only a few can be in 16 bits.
            in_place = kernel.problem.data_type in ("f32", "f64") or kernel.pass_ != "backward_filter"
            row = Measurement(
                task.micro_batch,
                task.algorithm,
                SUCCESS,
                found.workspace,
                notes="" if self._bench.thorough else RACED,
                median_ms=found.median_ms,
                spread_ms=found.spread_ms,
                accumulator=0 if in_place else CANNOT_ACCUMULATE,
            )
        self._bench.cache.add(source.machine, kernel, row)
        return [row]

    def tensors(self, engine: Engine) -> Tensors | None:
        """Return the framework's tensors for an engine; None if the framework has none."""
        if self._bench.source is None or self._kernel.problem.epilogue:
            return None
        try:
            return self._made_timer().tensors(engine)
        except (RuntimeError, MemoryError):
            return None

    def _made_timer(self) -> StockTimer:
        source = self._bench.source
        assert source is not None
        self._timer = self._timer or source.timer(self._kernel, self._bench.extent(self._kernel).samples)
        return self._timer

    def free(self) -> None:
        """Free the tensors."""
        self._timer = None


def whole_ms(rows: Iterable[Measurement], mini_batch: int) -> float | None:
    """Return the least time of the whole mini-batch that was measured; None if there is none."""
    return min((m.median_ms for m in rows if m.micro_batch == mini_batch and m.median_ms), default=None)


def _make_measurement(
    bench: Bench, task: Task, status: str, times: tuple[float, float] | None
) -> Measurement:
    # Few slices of a 16-bit gradient are summed in place. More need an accumulator, whose size is always the
    # same.
    accumulator = bench.engine.accumulator_size(task.kernel, MOST_SLICES_IN_PLACE + 1)
    return Measurement(
        micro_batch=task.micro_batch,
        algorithm=task.algorithm,
        status=status,
        workspace=task.workspace,
        notes=task.notes if bench.thorough or times is None else f"{task.notes} {RACED}".strip(),
        median_ms=times and times[0],
        spread_ms=times and times[1],
        accumulator=CANNOT_ACCUMULATE if accumulator is None else accumulator,
    )


def _first_line(error: RuntimeError) -> str:
    return str(error).partition("\n")[0] or type(error).__name__


def _read_status(error: EngineError) -> str:
    named = re.search(r"CUDNN_STATUS_\w+", str(error))
    return named[0] if named else str(error)
