"""The benchmark driver: it finds the measurements that the cache lacks, makes them, and keeps them."""

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from mucudnn._native import MOST_SLICES_IN_PLACE, Engine, EngineError
from mucudnn.costs.records import CANNOT_ACCUMULATE, SUCCESS, Machine, Measurement
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.buffers import Tensors, allocate_workspace
from mucudnn.problems.descriptor import problem_key
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import usable_sizes
from mucudnn.sizes import format_size

BUDGET_MS = 150.0  # the time for the runs of one measurement, once LEAST_RUNS are made
LEAST_RUNS, RUNS = 3, 7
HOPELESS = 2.0  # an algorithm this many times slower than the fastest of its size gets LEAST_RUNS at most


@dataclass(frozen=True)
class Task:
    """One measurement to make."""

    kernel: Kernel
    micro_batch: int
    algorithm: str
    workspace: int
    notes: str

    @property
    def repeats(self) -> int:
        """The number of timed runs.

        A division sums the times of many small slices, and their errors with them. So small sizes get as many
        runs as a division of the mini-batch has slices.
        """
        return max(RUNS, self.kernel.mini_batch // self.micro_batch)


@dataclass
class Worklist:
    """The measurements to make, and those that need too much memory."""

    tasks: list[Task] = field(default_factory=list)
    beyond_memory: list[Task] = field(default_factory=list)
    memory: int = 0  # the most bytes that measuring allocates at once


def find_missing(bench: Bench, kernels: Sequence[Kernel], policy: str, limit: int | None = None) -> Worklist:
    """Find the candidates of these kernels that the cache has no measurement of.

    The engine is asked for candidates that the cache does not know. Candidates that need more workspace than
    `limit` bytes are left out; those that do not fit the bench's memory with their tensors are listed apart.
    Raises MucudnnError if a kernel's tensors alone do not fit it.
    """
    missing = Worklist()
    for kernel in kernels:
        sizes = usable_sizes(policy, kernel)
        known = _find_known(bench, kernel)
        if not {size for size, _ in known}.issuperset(sizes):
            bench.extent(kernel)
        tasks = [
            Task(kernel, size, *candidate)
            for size, listed in bench.candidates(kernel, sizes).items()
            for candidate in listed
            if (size, candidate.algorithm) not in known and (limit is None or candidate.workspace <= limit)
        ]
        if tasks:
            tensors, cap = bench.extent(kernel).total, bench.memory_cap
            fitting = [task for task in tasks if tensors + task.workspace <= cap]
            missing.tasks += fitting
            missing.beyond_memory += [task for task in tasks if tensors + task.workspace > cap]
            needed = tensors + max((task.workspace for task in fitting), default=0)
            missing.memory = max(missing.memory, needed)
    return missing


def measure(bench: Bench, missing: Worklist) -> int:
    """Make the measurements and keep each in the cache at once. Returns the number that this process made.

    Other processes that use the cache may make some of them.
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
    unmeasured = _claim_tasks(bench, missing.tasks)
    progress = bench.listener.track(unmeasured, "Measuring", total=len(missing.tasks))
    made = 0
    for kernel, tasks in groupby(progress, key=lambda task: task.kernel):
        made += _measure_kernel(bench, kernel, tasks, largest[kernel])
    return made


def _find_known(bench: Bench, kernel: Kernel) -> set[tuple[int, str]]:
    """Return the (micro-batch size, algorithm) pairs that the cache has a measurement of."""
    return {(m.micro_batch, m.algorithm) for m in bench.cache.measurements(bench.machine, kernel)}


def _claim_tasks(bench: Bench, tasks: Sequence[Task]) -> Iterator[Task]:
    """Claim one kernel after the other, and yield its tasks that no other process has done by then."""
    kernels = [(kernel, list(group)) for kernel, group in groupby(tasks, key=lambda task: task.kernel)]
    for kernel, group in bench.cache.claimed(kernels, lambda item: _name_claim(bench.machine, item[0])):
        known = _find_known(bench, kernel)
        yield from (task for task in group if (task.micro_batch, task.algorithm) not in known)


def _name_claim(machine: Machine, kernel: Kernel) -> str:
    return f"measure {machine.identity} {problem_key(kernel.problem)} {kernel.pass_}"


def _measure_kernel(bench: Bench, kernel: Kernel, tasks: Iterable[Task], workspace_size: int) -> int:
    """Measure the tasks of one kernel, on tensors that are freed afterwards. Returns the number of tasks."""
    engine = bench.engine
    tensors = Tensors.random(engine, kernel.problem, bench.extent(kernel))
    workspace = allocate_workspace(engine, workspace_size)
    made, fastest = 0, dict[int, float]()
    for made, task in enumerate(tasks, 1):  # noqa: B007 (the last value is the number of tasks)
        times, status = [], SUCCESS
        try:
            times = engine.measure(
                kernel.at(task.micro_batch),
                task.algorithm,
                tensors.x,
                tensors.w,
                tensors.y,
                workspace,
                repeats=task.repeats,
                budget_ms=BUDGET_MS,
                operands=tensors.operands,
                hopeless_ms=HOPELESS * fastest.get(task.micro_batch, math.inf),
            )
            fastest[task.micro_batch] = min(statistics.median(times), fastest.get(task.micro_batch, math.inf))
        except EngineError as error:
            # A broken device raises here too. Then the failure says nothing about the algorithm.
            engine.available_memory  # noqa: B018
            status = _read_status(error)
        bench.cache.add(bench.machine, kernel, _make_measurement(engine, task, status, times))
    return made


def _make_measurement(engine: Engine, task: Task, status: str, times: list[float]) -> Measurement:
    median = statistics.median(times) if times else None
    quartiles = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else None
    # Every division in more slices than can be summed in place needs the same accumulator.
    accumulator = engine.accumulator_size(task.kernel, MOST_SLICES_IN_PLACE + 1)
    return Measurement(
        micro_batch=task.micro_batch,
        algorithm=task.algorithm,
        status=status,
        workspace=task.workspace,
        notes=task.notes,
        median_ms=median,
        spread_ms=quartiles[2] - quartiles[0] if quartiles else None,
        accumulator=CANNOT_ACCUMULATE if accumulator is None else accumulator,
    )


def _read_status(error: EngineError) -> str:
    named = re.search(r"CUDNN_STATUS_\w+", str(error))
    return named[0] if named else str(error)
