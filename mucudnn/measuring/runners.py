"""The ways to make the measurements that a cache lacks: all of them, a race, or none."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from mucudnn._native import HOST_BYTES_PER_MS, Engine
from mucudnn.costs.records import RACED, Measurement
from mucudnn.measuring.candidates import wastes_transform
from mucudnn.measuring.race import Candidate, RaceGoal, next_candidate
from mucudnn.problems.kernels import Kernel

Rows: TypeAlias = Sequence[Measurement]


@dataclass(frozen=True)
class Task:
    """A measurement to make, with the source of STOCK if `is_stock`, else with the engine."""

    kernel: Kernel
    micro_batch: int
    algorithm: str
    workspace: int
    notes: str
    is_stock: bool = False


@dataclass
class Worklist:
    """The measurements to make, and those that need too much memory.

    A race finds a choice within each of the `limits` and, with `undivided`, the best undivided algorithm to
    compare the choice with. With `again`, disturbed measurements that are due are made again. `memory` is the
    most bytes that measuring allocates at once.
    """

    tasks: list[Task] = field(default_factory=list)
    beyond_memory: list[Task] = field(default_factory=list)
    limits: Sequence[int | None] = (None,)
    undivided: bool = False
    again: bool = True
    memory: int = 0


class Runner:
    """A way to make the measurements that a cache lacks.

    - `measures`: False if it makes no measurements.
    - `is_complete`: True if a decision needs measurements at every micro-batch size, in many runs on tensors
      that exceed the caches. They also serve later decisions, so the limits of this decision do not matter.
    - `is_hurried`: True if a program waits for the decision, so small gains are not worth measuring.
    - `note`: a word that it adds to the notes of its measurements.
    """

    measures: ClassVar[bool] = True
    is_complete: ClassVar[bool] = True
    is_hurried: bool = False
    note: ClassVar[str] = ""

    def admits(self, kernel: Kernel, algorithm: str) -> bool:
        """Return whether an algorithm may be measured for a kernel: in a race, if it may be fast."""
        return self.is_complete or not wastes_transform(kernel, algorithm)

    def upcoming(self, engine: Engine, tasks: Sequence[Task], rows: Rows, todo: Worklist) -> Iterator[Task]:
        """Yield the tasks of one kernel, in the order to do them.

        The caller adds each measurement to `rows`, the kernel's measurements, before it asks for the next
        task.
        """
        raise NotImplementedError


class Replay(Runner):
    """The runner that makes no measurements: decisions use the recorded ones alone."""

    measures: ClassVar[bool] = False


class Exhaustive(Runner):
    """The runner of every algorithm at every size."""

    def upcoming(self, engine: Engine, tasks: Sequence[Task], rows: Rows, todo: Worklist) -> Iterator[Task]:
        """Yield all tasks."""
        return iter(tasks)


@dataclass(frozen=True)
class Race(Runner):
    """The runner that skips candidates which will hardly be chosen, and times the others in few runs."""

    is_hurried: bool = False
    is_complete: ClassVar[bool] = False
    note: ClassVar[str] = RACED

    def upcoming(self, engine: Engine, tasks: Sequence[Task], rows: Rows, todo: Worklist) -> Iterator[Task]:
        """Yield the tasks that may still improve the choice."""
        left = list(tasks)
        while left and (task := _choose_task(engine, left, rows, todo)) is not None:
            left.remove(task)
            yield task


def whole_ms_of(rows: Iterable[Measurement], mini_batch: int) -> float | None:
    """Return the least measured time of the whole mini-batch; None before there is any."""
    return min((m.time_ms for m in rows if m.micro_batch == mini_batch and m.time_ms), default=None)


def _choose_task(engine: Engine, tasks: Sequence[Task], rows: Rows, worklist: Worklist) -> Task | None:
    """Return the next task in the race of a kernel; None if the race is over."""
    kernel = tasks[0].kernel
    candidates = {Candidate(task.micro_batch, task.algorithm, task.workspace): task for task in tasks}
    is_on_gpu = engine.kind == "cudnn"
    if is_on_gpu:  # the heuristics rank only the engines of the graph API
        candidates = dict(
            sorted(candidates.items(), key=lambda item: not item[0].algorithm.startswith("eng"))
        )
    bytes_per_ms = HOST_BYTES_PER_MS * engine.threads if engine.kind == "host" else None
    goal = RaceGoal(kernel.mini_batch, worklist.limits, worklist.undivided, bytes_per_ms, is_on_gpu)
    chosen = next_candidate(list(candidates), rows, goal)
    return None if chosen is None else candidates[chosen]
