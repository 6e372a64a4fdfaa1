"""The simulated time and memory of a pipeline's schedule, and the choice of a schedule.

A task starts when its rank is free, the task before it in the rank's order has ended, and its input has
arrived. Transfers overlap with computation, take latency + bytes / bandwidth, and never wait for one another.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..workspace.configuration import Infeasible
from .schedules import SCHEDULES, Schedule, Task


@dataclass(frozen=True, slots=True)
class Stage:
    """The costs of one stage for one micro-batch.

    Args:
        forward_ms: milliseconds of the forward pass.
        backward_ms: milliseconds of the backward pass.
        activations: bytes that the forward pass keeps for the backward pass, with the stage's input.
        input: bytes of the stage's input, and of its gradient; they travel between ranks.
        weights: bytes that a rank always holds for the stage: weights, gradients, optimizer's state.

    Raises:
        ValueError: a figure is negative or not finite, or the input is larger than the activations.
    """

    forward_ms: float
    backward_ms: float
    activations: int = 0
    input: int = 0
    weights: int = 0

    def __post_init__(self) -> None:
        for name in ("forward_ms", "backward_ms", "activations", "input", "weights"):
            value = getattr(self, name)
            if not 0 <= value < math.inf:
                raise ValueError(f"{name} of a stage is {value}, must be finite and not negative")
        if self.input > self.activations:
            raise ValueError(
                f"a stage keeps {self.activations} bytes, fewer than the {self.input} bytes of its input"
            )


@dataclass(frozen=True, slots=True)
class PeerLink:
    """The connection between two ranks: milliseconds of latency, and bytes per second.

    Raises:
        ValueError: the latency is negative or the bandwidth is not above 0.
    """

    latency_ms: float = 0.0
    bandwidth: float = math.inf

    def __post_init__(self) -> None:
        if not 0 <= self.latency_ms < math.inf:
            raise ValueError(f"latency_ms is {self.latency_ms}, must be finite and not negative")
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth is {self.bandwidth}, must be above 0")

    def milliseconds(self, size: float, messages: int = 1) -> float:
        """Return the time that messages with `size` bytes in all take."""
        return messages * self.latency_ms + size / self.bandwidth * 1e3


INSTANT = PeerLink()


@dataclass(frozen=True, slots=True)
class PipelineTimeline:
    """A simulated mini-batch on all ranks.

    Attributes:
        schedule: the schedule.
        starts_ms: the start of each of a rank's tasks, for every rank.
        ends_ms: their ends.
        peaks: the most bytes that each rank holds.
        live: the most micro-batches whose activations, or inputs with recomputing, each rank holds.
    """

    schedule: Schedule
    starts_ms: tuple[tuple[float, ...], ...]
    ends_ms: tuple[tuple[float, ...], ...]
    peaks: tuple[int, ...]
    live: tuple[int, ...]

    @property
    def time_ms(self) -> float:
        """Milliseconds from the start to the end of the last rank."""
        return max((ends[-1] for ends in self.ends_ms if ends), default=0.0)

    @property
    def peak(self) -> int:
        """The most bytes that any rank holds."""
        return max(self.peaks)


def simulate_pipeline(
    schedule: Schedule, stages: Sequence[Stage], link: PeerLink = INSTANT
) -> PipelineTimeline:
    """Simulate one mini-batch.

    Args:
        schedule: the orders of work.
        stages: the costs of each stage for one micro-batch.
        link: the connection between each pair of ranks.

    Raises:
        ValueError: the schedule has another number of stages, or its orders wait for each other forever.
    """
    if len(stages) != schedule.stages:
        raise ValueError(f"the schedule has {schedule.stages} stages, costs are given for {len(stages)}")
    arrived = {
        task: 0.0 for order in schedule.orders for task in order if (task.pass_, task.stage) == ("forward", 0)
    }
    starts: list[list[float]] = [[] for _ in stages]
    ends: list[list[float]] = [[] for _ in stages]
    waiting = set(range(len(stages)))
    while waiting:
        progress = False
        for rank in sorted(waiting):
            order = schedule.orders[rank]
            while len(ends[rank]) < len(order):
                task = order[len(ends[rank])]
                if task not in arrived:
                    break
                start = max(arrived[task], ends[rank][-1] if ends[rank] else 0.0)
                end = start + _milliseconds(task, schedule, stages)
                starts[rank].append(start)
                ends[rank].append(end)
                if (follower := task.follower(len(stages))) is not None:
                    is_local = follower.stage == task.stage
                    size = stages[max(task.stage, follower.stage)].input
                    arrived[follower] = end + (0.0 if is_local else link.milliseconds(size))
                progress = True
            else:
                waiting.discard(rank)
        if waiting and not progress:
            rank = min(waiting)
            task = schedule.orders[rank][len(ends[rank])]
            raise ValueError(f"the schedule never ends: rank {rank} waits forever for the {task}")
    memory = [_hold(schedule, stages, rank) for rank in range(len(stages))]
    return PipelineTimeline(
        schedule,
        tuple(map(tuple, starts)),
        tuple(map(tuple, ends)),
        tuple(peak for peak, _ in memory),
        tuple(live for _, live in memory),
    )


def choose_schedule(
    stages: Sequence[Stage], micro_batches: int, *, memory: int | None = None, link: PeerLink = INSTANT
) -> PipelineTimeline:
    """Return the timeline of the fastest schedule whose ranks all stay within a memory.

    Of equally fast schedules, it takes the one with the lowest peak, then the first in `SCHEDULES`.

    Args:
        stages: the costs of each stage for one micro-batch.
        micro_batches: the number of micro-batches in a mini-batch.
        memory: the most bytes that a rank may hold; None for no limit.
        link: the connection between ranks.

    Raises:
        Infeasible: no schedule fits. Its `need` is the least memory with which one does.
    """
    timelines = [
        simulate_pipeline(schedule(len(stages), micro_batches), stages, link)
        for schedule in SCHEDULES.values()
    ]
    fitting = [t for t in timelines if memory is None or t.peak <= memory]
    if not fitting:
        least = min(timelines, key=lambda t: t.peak)
        raise Infeasible(
            f"no schedule of {len(stages)} stages fits {memory} bytes on each rank: "
            f"the least is {least.peak} bytes ({least.schedule.name})",
            limit=memory,
            need=least.peak,
        )
    return min(fitting, key=lambda t: (t.time_ms, t.peak))


def _milliseconds(task: Task, schedule: Schedule, stages: Sequence[Stage]) -> float:
    stage = stages[task.stage]
    if task.pass_ == "forward":
        return stage.forward_ms
    return stage.backward_ms + (stage.forward_ms if schedule.recomputes else 0.0)


def _hold(schedule: Schedule, stages: Sequence[Stage], rank: int) -> tuple[int, int]:
    """Return the most bytes that a rank holds, and the most micro-batches whose activations it holds."""
    held = sum(stages[stage].weights for stage, _ in schedule.stages_of(rank))
    live, peak, most = 0, held, 0
    for task in schedule.orders[rank]:
        stage = stages[task.stage]
        kept = stage.input if schedule.recomputes else stage.activations
        if task.pass_ == "forward":
            held += kept
            live += 1
            peak = max(peak, held)
        else:
            # The recomputed forward pass makes all activations of this micro-batch.
            peak = max(peak, held - kept + stage.activations)
            held -= kept
            live -= 1
        most = max(most, live)
    return peak, most
