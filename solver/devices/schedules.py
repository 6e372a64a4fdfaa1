"""Orders of work for pipelines: the order in which each rank computes its stages of micro-batches.

A model is cut into D stages. Rank r holds stage r of the first replica. In a schedule with two replicas it
also holds stage D-1-r of the second one, whose micro-batches travel in the opposite direction. All
micro-batches contribute to one update, so all schedules have the same gradients. `pipelines` simulates them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from typing import Literal


@dataclass(frozen=True, slots=True)
class Task:
    """The forward or backward pass of one micro-batch through one stage of one replica.

    Args:
        pass_: the pass; "backward" computes the gradients of both the stage's input and its weights.
        micro_batch: the number of the micro-batch in the mini-batch, from 0.
        stage: the stage, from 0.
        replica: 0, or 1 for the replica whose micro-batches travel from the last rank to the first.
    """

    pass_: Literal["forward", "backward"]
    micro_batch: int
    stage: int
    replica: int = 0

    def __str__(self) -> str:
        """Return a text such as `forward of micro-batch 3 in stage 1`."""
        replica = f" of replica {self.replica}" if self.replica else ""
        return f"{self.pass_} of micro-batch {self.micro_batch} in stage {self.stage}{replica}"

    def follower(self, stages: int) -> Task | None:
        """Return the task that needs this task's result; None after the backward pass of the first stage."""
        if self.pass_ == "forward" and self.stage == stages - 1:
            return replace(self, pass_="backward")
        stage = self.stage + (1 if self.pass_ == "forward" else -1)
        return None if stage < 0 else replace(self, stage=stage)


@dataclass(frozen=True, slots=True)
class Schedule:
    """The order of work of every rank.

    Attributes:
        name: the name of the schedule for people.
        orders: each rank's tasks in the order in which it runs them.
        replicas: how many copies of the model the ranks hold together, 1 or 2.
        recomputes: True if a stage keeps only its input and runs forward again before it runs backward.
    """

    name: str
    orders: tuple[tuple[Task, ...], ...]
    replicas: int = 1
    recomputes: bool = False

    @property
    def stages(self) -> int:
        """The number of stages, which is also the number of ranks."""
        return len(self.orders)

    def rank_of(self, stage: int, replica: int) -> int:
        """Return the rank that holds a stage."""
        return stage if replica == 0 else self.stages - 1 - stage

    def stages_of(self, rank: int) -> list[tuple[int, int]]:
        """Return the (stage, replica) that a rank holds."""
        return [(rank, 0), (self.stages - 1 - rank, 1)][: self.replicas]


def layer_parallel(stages: int, micro_batches: int) -> Schedule:
    """Return the schedule of a model that is cut into stages but not pipelined.

    A micro-batch goes forward and backward before the next one starts, so only one rank works at a time.
    """
    return _one_after_another("layers", stages, micro_batches, replicas=1)


def gems(stages: int, micro_batches: int) -> Schedule:
    """Return the schedule of GEMS, in which two replicas alternate.

    The forward pass of one replica follows the backward pass of the other. A rank keeps the activations of at
    most one micro-batch. With two micro-batches it is the paper's MAST, with more MASTER.

    Source: Jain et al., "GEMS: GPU-Enabled Memory-Aware Model-Parallelism System for Distributed DNN
    Training", SC'20.
    """
    return _one_after_another("gems", stages, micro_batches, replicas=2)


def gpipe(stages: int, micro_batches: int) -> Schedule:
    """Return the schedule of GPipe: all micro-batches go forward, then all go backward.

    A rank keeps the activations of all micro-batches.

    Source: Huang et al., "GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism",
    NeurIPS 2019.
    """
    _check(stages, micro_batches)
    orders = [
        tuple(Task(pass_, i, rank) for pass_ in ("forward", "backward") for i in range(micro_batches))
        for rank in range(stages)
    ]
    return Schedule("gpipe", tuple(orders))


def forward_only(stages: int, micro_batches: int) -> Schedule:
    """Return the schedule of an evaluation: all micro-batches go forward through the first replica."""
    _check(stages, micro_batches)
    orders = [tuple(Task("forward", i, rank) for i in range(micro_batches)) for rank in range(stages)]
    return Schedule("forward only", tuple(orders))


def one_forward_one_backward(stages: int, micro_batches: int, *, recomputes: bool = False) -> Schedule:
    """Return the schedule 1F1B: a rank runs backward as soon as it can, and forward to fill the pipeline.

    It takes as long as GPipe. Rank r of D keeps the activations of at most D-r micro-batches.

    Source: Narayanan et al., "PipeDream: Generalized Pipeline Parallelism for DNN Training", SOSP 2019;
    with one update for each mini-batch, as in their "Memory-Efficient Pipeline-Parallel DNN Training", 2021.
    """
    _check(stages, micro_batches)
    orders = []
    for rank in range(stages):
        ahead = min(stages - 1 - rank, micro_batches)
        order = [Task("forward", i, rank) for i in range(ahead)]
        for i in range(micro_batches):
            if i + ahead < micro_batches:
                order.append(Task("forward", i + ahead, rank))
            order.append(Task("backward", i, rank))
        orders.append(tuple(order))
    return Schedule("1f1b, recompute" if recomputes else "1f1b", tuple(orders), recomputes=recomputes)


def bidirectional(stages: int, micro_batches: int) -> Schedule:
    """Return a schedule in which two replicas are pipelined at once, in opposite directions.

    Micro-batches alternate between the replicas. A rank prefers backward to forward, and keeps at most as
    many micro-batches as there are stages. The order comes from a simulation in which a backward pass takes
    twice as long as a forward pass.

    Source: the idea is that of Chimera (Li and Hoefler, SC'21) and of DualPipe; the order is ours.
    """
    _check(stages, micro_batches)
    return Schedule("bidirectional", _run_greedily(stages, micro_batches), replicas=2)


SCHEDULES: dict[str, Callable[[int, int], Schedule]] = {
    "layers": layer_parallel,
    "gems": gems,
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "1f1b, recompute": lambda stages, micro_batches: one_forward_one_backward(
        stages, micro_batches, recomputes=True
    ),
    "bidirectional": bidirectional,
}
"""The schedules by name, as functions of the numbers of stages and micro-batches."""


def _check(stages: int, micro_batches: int) -> None:
    for name, value in (("stages", stages), ("micro_batches", micro_batches)):
        if value < 1:
            raise ValueError(f"{name} is {value}, must be at least 1")


def _one_after_another(name: str, stages: int, micro_batches: int, replicas: int) -> Schedule:
    """Return the schedule in which each micro-batch goes forward and backward through the next replica."""
    _check(stages, micro_batches)
    orders = [
        tuple(
            Task(pass_, i, stages - 1 - rank if i % replicas else rank, i % replicas)
            for i in range(micro_batches)
            for pass_ in ("forward", "backward")
        )
        for rank in range(stages)
    ]
    return Schedule(name, tuple(orders), replicas)


def _run_greedily(stages: int, micro_batches: int) -> tuple[tuple[Task, ...], ...]:
    """Return the orders of ranks that never wait while a task is ready and take the best one first."""
    orders: list[list[Task]] = [[] for _ in range(stages)]
    ready: list[list[tuple[bool, int, int, Task]]] = [[] for _ in range(stages)]
    busy, held = [False] * stages, [0] * stages
    arrivals: list[tuple[float, int, int, Task]] = []  # (time, number, rank that ends its task or -1, task)
    count = 0

    def rank_of(task: Task) -> int:
        return task.stage if task.replica == 0 else stages - 1 - task.stage

    def arrive(time: float, task: Task, ended_on: int = -1) -> None:
        nonlocal count
        heappush(arrivals, (time, count, ended_on, task))
        count += 1

    for i in range(micro_batches):
        arrive(0.0, Task("forward", i, 0, i % 2))
    while arrivals:
        now = arrivals[0][0]
        while arrivals and arrivals[0][0] == now:
            _, _, ended_on, task = heappop(arrivals)
            if ended_on >= 0:
                busy[ended_on] = False
                held[ended_on] -= task.pass_ == "backward"
                follower = task.follower(stages)
                if follower is None:
                    continue
                task = follower
            # Later stages first: they are nearest to a backward pass, which frees memory.
            heappush(ready[rank_of(task)], (task.pass_ == "forward", task.micro_batch, -task.stage, task))
        for rank in range(stages):
            if busy[rank] or not ready[rank]:
                continue
            is_forward, *_, task = ready[rank][0]
            if is_forward and held[rank] >= stages:
                continue
            heappop(ready[rank])
            orders[rank].append(task)
            busy[rank] = True
            held[rank] += is_forward
            arrive(now + (1.0 if is_forward else 2.0), task, rank)
    return tuple(map(tuple, orders))
