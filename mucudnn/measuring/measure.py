"""The benchmark driver: it finds the measurements that the cache lacks, makes them, and keeps them."""

import math
import re
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from mucudnn._native import MOST_SLICES_IN_PLACE, Engine, EngineError
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import CANNOT_ACCUMULATE, SUCCESS, Machine, Measurement
from mucudnn.listener import Listener
from mucudnn.measuring.buffers import Tensors, allocate_workspace, measuring_extent
from mucudnn.measuring.candidates import candidates
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
        return max(RUNS, self.kernel.problem.mini_batch // self.micro_batch)


@dataclass
class Survey:
    """The measurements to make, and those that need too much memory."""

    tasks: list[Task] = field(default_factory=list)
    beyond_memory: list[Task] = field(default_factory=list)
    memory: int = 0  # the most bytes that measuring allocates at once


def machine_of(engine: Engine) -> Machine:
    """Return the machine that an engine's measurements belong to."""
    return Machine(engine.kind, engine.device, engine.library, engine.threads)


def survey(
    engine: Engine,
    cache: Cache,
    kernels: Sequence[Kernel],
    policy: str,
    cap: int,
    limit: int | None = None,
) -> Survey:
    """Find the candidates of these kernels that the cache has no measurement of.

    The engine is asked for candidates that the cache does not know. Candidates that need more workspace than
    `limit` bytes are left out; those that do not fit `cap` bytes with their tensors are listed apart.
    Raises MucudnnError if a kernel's tensors alone take more than `cap` bytes.
    """
    machine, found = machine_of(engine), Survey()
    for kernel in kernels:
        problem, pass_ = kernel.problem, kernel.pass_
        sizes = usable_sizes(policy, problem, pass_)
        known = {(m.micro_batch, m.algorithm) for m in cache.measurements(machine, problem, pass_)}
        if not {size for size, _ in known}.issuperset(sizes):
            measuring_extent(problem, cap, engine.bytes_beyond_caches)
        tasks = [
            Task(kernel, size, *candidate)
            for size, listed in candidates(engine, machine, cache, kernel, sizes).items()
            for candidate in listed
            if (size, candidate.algorithm) not in known and (limit is None or candidate.workspace <= limit)
        ]
        if tasks:
            tensors = measuring_extent(problem, cap, engine.bytes_beyond_caches).total
            fitting = [task for task in tasks if tensors + task.workspace <= cap]
            found.tasks += fitting
            found.beyond_memory += [task for task in tasks if tensors + task.workspace > cap]
            found.memory = max(found.memory, tensors + max((task.workspace for task in fitting), default=0))
    return found


def measure(engine: Engine, cache: Cache, found: Survey, cap: int, listener: Listener) -> int:
    """Make the measurements and keep each in the cache at once. Returns the number that this process made.

    Other processes that use the cache may make some of them.
    """
    if found.beyond_memory:
        worst = max(found.beyond_memory, key=lambda task: task.workspace)
        listener.message(
            f"Not measured: {len(found.beyond_memory)} algorithms that need too much memory, such as "
            f"{worst.algorithm} for {worst.kernel} at {worst.micro_batch} with "
            f"{format_size(worst.workspace)} of workspace"
        )
    largest: dict[Kernel, int] = {}
    for task in found.tasks:
        largest[task.kernel] = max(task.workspace, largest.get(task.kernel, 0))
    unmeasured = _claim_tasks(cache, machine_of(engine), found.tasks)
    progress = listener.track(unmeasured, "Measuring", total=len(found.tasks))
    made = 0
    for kernel, tasks in groupby(progress, key=lambda task: task.kernel):
        made += _measure_kernel(engine, cache, kernel, tasks, largest[kernel], cap)
    return made


def _claim_tasks(cache: Cache, machine: Machine, tasks: Sequence[Task]) -> Iterator[Task]:
    """Claim one kernel after the other, and yield its tasks that no other process has done by then."""
    kernels = [(kernel, list(group)) for kernel, group in groupby(tasks, key=lambda task: task.kernel)]
    for kernel, group in cache.claimed(kernels, lambda item: _name_claim(machine, item[0])):
        known = {
            (m.micro_batch, m.algorithm) for m in cache.measurements(machine, kernel.problem, kernel.pass_)
        }
        yield from (task for task in group if (task.micro_batch, task.algorithm) not in known)


def _name_claim(machine: Machine, kernel: Kernel) -> str:
    return f"measure {machine.identity} {problem_key(kernel.problem)} {kernel.pass_}"


def _measure_kernel(
    engine: Engine, cache: Cache, kernel: Kernel, tasks: Iterable[Task], workspace_size: int, cap: int
) -> int:
    """Measure the tasks of one kernel, on tensors that are freed afterwards. Returns the number of tasks."""
    extent = measuring_extent(kernel.problem, cap, engine.bytes_beyond_caches)
    tensors = Tensors.random(engine, kernel.problem, extent)
    workspace = allocate_workspace(engine, workspace_size)
    made, fastest = 0, dict[int, float]()
    for made, task in enumerate(tasks, 1):  # noqa: B007 (the last value is the number of tasks)
        problem = kernel.problem.replace(mini_batch=task.micro_batch)
        times, status = [], SUCCESS
        try:
            times = engine.measure(
                problem,
                kernel.pass_,
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
        cache.add(machine_of(engine), problem, kernel.pass_, _make_measurement(engine, task, status, times))
    return made


def _make_measurement(engine: Engine, task: Task, status: str, times: list[float]) -> Measurement:
    median = statistics.median(times) if times else None
    quartiles = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else None
    # Every division in more slices than can be summed in place needs the same accumulator.
    accumulator = engine.accumulator_size(task.kernel.problem, task.kernel.pass_, MOST_SLICES_IN_PLACE + 1)
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
