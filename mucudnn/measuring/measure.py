"""The benchmark driver, which finds the measurements that the cache lacks, makes them and caches them."""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from math import isinf

from mucudnn._native import EngineError, UnfinishedError
from mucudnn.costs.records import STOCK, SUCCESS, UNLIKELY, Measurement
from mucudnn.listener import Listener
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.budget import spell_budget
from mucudnn.measuring.close_candidates import find_close, measure_close
from mucudnn.measuring.likely import drop_unlikely, find_unlikely
from mucudnn.measuring.runners import Task, Worklist, whole_ms_of
from mucudnn.measuring.source import stock_row, timed
from mucudnn.measuring.timers import ExhaustiveTimer, RaceTimer, StockOfKernel
from mucudnn.problems.descriptor import problem_key
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import usable_sizes
from mucudnn.sizes import format_size
from mucudnn.solver import is_tiled

# Interleaved runs of close candidates take as long as the undivided call if a program waits for them, else
# this many times as long, and at least these ms.
_COMPARISON_UNITS, _LEAST_COMPARISON_MS = 24, 20.0


def find_missing(
    bench: Bench,
    kernels: Sequence[Kernel],
    policy: str,
    limits: Sequence[int | None] = (None,),
    *,
    undivided: bool = False,
    again: bool = True,
) -> Worklist:
    """Return the candidates of these kernels that have no measurement in the cache.

    With `again`, disturbed measurements that are due count as missing: see `Cache.measurements`. Candidates
    that need more workspace than the last of the ascending `limits`, in bytes, are omitted; None sets no
    limit. Candidates that exceed the bench's memory together with their tensors are listed separately. With
    `undivided` a race also measures an undivided algorithm. Raises MucudnnError if a kernel's tensors alone
    exceed the memory.
    """
    missing = Worklist(limits=limits, undivided=undivided, again=again)
    limit, runner = limits[-1], bench.runner
    for kernel in kernels if runner.measures else ():
        sizes = usable_sizes(policy, kernel)
        rows = _rows(bench, kernel, again)
        known, unlikely = _measured_pairs(bench, rows), _known_unlikely(bench, kernel, rows, limits[0])
        if not {size for size, _ in known}.issuperset(sizes):
            bench.extent(kernel)
        tasks = _stock_tasks(bench, kernel, sizes, known)
        tasks += [
            Task(kernel, size, *candidate)
            for size, listed in bench.candidates(kernel, sizes).items()
            for candidate in listed
            if (size, candidate.algorithm) not in known
            and (limit is None or candidate.workspace <= limit)
            and runner.admits(kernel, candidate.algorithm)
        ]
        tasks = drop_unlikely(unlikely, kernel, tasks, rows, missing)
        if next(runner.upcoming(bench.engine, tasks, rows, missing), None) is None:
            continue
        tensors, cap = bench.extent(kernel).total, bench.memory_cap
        fitting = [task for task in tasks if tensors + task.workspace <= cap]
        missing.tasks += fitting
        missing.beyond_memory += [task for task in tasks if tensors + task.workspace > cap]
        needed = tensors + max((task.workspace for task in fitting), default=0)
        missing.memory = max(missing.memory, needed)
    return missing


def measure(bench: Bench, missing: Worklist) -> None:
    """Make the missing measurements, and cache each at once.

    Once the bench's budget is spent, each kernel gets only the measurements that a choice cannot do without.
    Skip those that other processes with the same cache have made meanwhile.
    """
    if missing.beyond_memory:
        worst = max(missing.beyond_memory, key=lambda task: task.workspace)
        bench.listener.message(
            f"Not measured: {len(missing.beyond_memory)} algorithms that need too much memory, such as "
            f"{worst.algorithm} for {worst.kernel} at {worst.micro_batch} with "
            f"{format_size(worst.workspace)} of workspace"
        )
    budget = bench.budget
    title = "Measuring" if isinf(budget.seconds) else f"Measuring within {spell_budget(budget.seconds)}"
    # A paced block is over at once, and importing a progress bar takes long.
    listener = Listener() if budget.is_paced else bench.listener
    with budget.spending():
        for _ in listener.track(_measure_claimed(bench, missing), title, total=len(missing.tasks)):
            pass
        is_spent = budget.is_spent
    if is_spent and not budget.is_reported:
        budget.is_reported = True
        bench.listener.message(
            f"The budget of {spell_budget(budget.seconds)} is spent: the best choices so far are taken, and "
            "later runs measure the rest"
        )


def _measured_pairs(bench: Bench, rows: Iterable[Measurement]) -> set[tuple[int, str]]:
    """Return the (micro-batch size, algorithm) pairs whose measurements are exact enough for the bench."""
    return {
        (m.micro_batch, m.algorithm)
        for m in rows
        if m.status != UNLIKELY and not (m.is_raced and bench.runner.is_complete)
    }


def _known_unlikely(bench: Bench, kernel: Kernel, rows: Iterable[Measurement], limit: int | None) -> set[str]:
    """Return the algorithms that an earlier race left out, within this limit or a smaller one."""
    if bench.runner.is_complete:
        return set()
    return {
        row.algorithm
        for row in rows
        if row.status == UNLIKELY
        and row.micro_batch == kernel.mini_batch
        and (limit is None or row.workspace <= limit)
    }


def _leave_out_unlikely(
    bench: Bench, kernel: Kernel, tasks: list[Task], rows: Sequence[Measurement], missing: Worklist
) -> list[Task]:
    """Return the tasks that a race should do, and keep the algorithms that it leaves out in the cache.

    What another process left out meanwhile stays out, although the model may know better by now: processes
    that share a cache make the same choice.
    """
    if bench.runner.is_complete:
        return tasks
    tasks = drop_unlikely(
        _known_unlikely(bench, kernel, rows, missing.limits[0]), kernel, tasks, rows, missing
    )
    engine_tasks = [task for task in tasks if not task.is_stock]
    unlikely = find_unlikely(bench, kernel, engine_tasks, missing.limits[0])
    for algorithm, workspace in unlikely.items():
        row = Measurement(kernel.mini_batch, algorithm, UNLIKELY, workspace, bench.runner.note)
        bench.cache.add(bench.machine, kernel, row)
    return drop_unlikely(unlikely, kernel, tasks, rows, missing)


def _stock_tasks(
    bench: Bench, kernel: Kernel, sizes: Sequence[int], known: set[tuple[int, str]]
) -> list[Task]:
    """Return the tasks of the source, which run first: its tensors are freed before the engine allocates."""
    if bench.source is None or kernel.problem.epilogue or not bench.source.admits(kernel):
        return []
    return [
        Task(kernel, size, name, 0, "", is_stock=True)
        for size in reversed(sizes)
        if (size, name := stock_row(kernel, size)) not in known
    ]


def _measure_claimed(bench: Bench, missing: Worklist) -> Iterator[Task]:
    """Claim one kernel after another, measure what no other process has measured, and yield each task.

    The tensors of a kernel are freed after its tasks.
    """
    kernels = [
        (kernel, list(group)) for kernel, group in groupby(missing.tasks, key=lambda task: task.kernel)
    ]
    name, budget = f"measure {bench.machine.identity}", bench.budget
    for kernel, group in bench.cache.claimed(
        kernels, lambda item: f"{name} {problem_key(item[0].problem)} {item[0].pass_}"
    ):
        rows = _rows(bench, kernel, missing.again)
        known = _measured_pairs(bench, rows)
        left = [task for task in group if (task.micro_batch, task.algorithm) not in known]
        left = _leave_out_unlikely(bench, kernel, left, rows, missing)
        kind = ExhaustiveTimer if bench.runner.is_complete else RaceTimer
        timer = kind(StockOfKernel(bench, kernel, rows), max(task.workspace for task in group))
        is_over = False
        while not is_over:
            is_over = True
            for task in bench.runner.upcoming(bench.engine, list(left), rows, missing):
                if is_over := budget.is_spent:
                    for least in () if budget.is_paced else _least_tasks(kernel, left, rows):
                        _measure_task(bench, least, timer, rows)
                        yield least
                    break
                left.remove(task)
                _measure_task(bench, task, timer, rows)
                yield task
            if isinstance(timer, RaceTimer) and timer.has_raced:
                _interleave_close(bench, kernel, timer, rows)  # may leave the race more to measure


def _least_tasks(kernel: Kernel, tasks: Sequence[Task], rows: Sequence[Measurement]) -> Iterator[Task]:
    """Yield the tasks that a choice cannot do without: STOCK, and an algorithm that runs undivided.

    The caller adds each measurement to `rows`. The algorithm is that with the least workspace, which fits any
    limit that others fit.
    """
    whole = [task for task in tasks if task.micro_batch == kernel.mini_batch and not is_tiled(task.algorithm)]
    known = {row.algorithm for row in rows if row.micro_batch == kernel.mini_batch}
    yield from (task for task in whole if task.is_stock and task.algorithm not in known)
    for task in sorted((task for task in whole if not task.is_stock), key=lambda task: task.workspace):
        if any(
            row.micro_batch == kernel.mini_batch
            and row.time_ms
            and row.algorithm != STOCK
            and row.workspace <= task.workspace
            for row in rows
        ):
            return
        if task.algorithm not in known:
            yield task


def _rows(bench: Bench, kernel: Kernel, again: bool) -> list[Measurement]:
    """Return the measurements of a kernel: those of the engine and those of STOCK.

    With `again`, measurements that are due to be made again are omitted.
    """
    rows: list[Measurement] = []
    for machine in (bench.machine, *(() if bench.source is None else (bench.source.machine,))):
        rows += bench.cache.measurements(machine, kernel, due=not again)
    return rows


def _measure_task(
    bench: Bench, task: Task, timer: ExhaustiveTimer | RaceTimer, rows: list[Measurement]
) -> None:
    """Measure a task, cache its measurement, and add it to the rows of its kernel."""
    bench.made["measured"] += 1
    if task.is_stock:
        rows += timer.stock.measure(task)
        return
    timing, status = None, SUCCESS
    try:
        timing = timer.measure(task)
    except UnfinishedError:
        return
    except EngineError as error:
        # Raises if the device is broken, in which case the failure says nothing about the algorithm.
        bench.engine.available_memory  # noqa: B018
        named = re.search(r"CUDNN_STATUS_\w+", str(error))
        status = named[0] if named else str(error)
    notes = task.notes if timing is None else f"{task.notes} {bench.runner.note}".strip()
    row = Measurement(task.micro_batch, task.algorithm, status, task.workspace, notes)
    rows.append(row if timing is None else timed(row, timing))
    if timing is not None and isinstance(timer, RaceTimer):
        timer.has_raced = True
    bench.cache.add(bench.machine, task.kernel, rows[-1])


def _interleave_close(bench: Bench, kernel: Kernel, timer: RaceTimer, rows: list[Measurement]) -> None:
    """Measure the close candidates of a kernel again, interleaved, and replace their measurements."""
    timer.has_raced = False
    if bench.budget.is_spent:
        return
    close = find_close(rows, kernel.mini_batch, timer.workspace)
    budget_ms = whole_ms_of(rows, kernel.mini_batch) or 0.0
    if not bench.runner.is_hurried:
        budget_ms = max(_LEAST_COMPARISON_MS, _COMPARISON_UNITS * budget_ms)
    try:
        again = measure_close(timer, close, budget_ms) if close else []
    except UnfinishedError:  # the measurements of the race stay
        return
    except EngineError:
        bench.engine.available_memory  # noqa: B018
        return
    for old, row in zip(close, again, strict=False):  # none if disturbed
        bench.cache.add(bench.machine, kernel, row)
        rows[rows.index(old)] = row
