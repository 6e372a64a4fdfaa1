"""An event-driven simulation of a training step on a compute stream and two copy engines.

Steps run in order on the compute stream. One engine copies to the host and the other one back, in pieces.

- A copy out may begin when the step that writes the tensor has ended. Of several tensors, the one with the
  earliest last forward use goes first. The tensor leaves the device after its last forward use.
- A copy in may begin at a step that is set for each tensor, by default the first backward use less the
  window, as soon as there is memory for it until that use. Tensors return strictly in the order of their
  first backward uses.
- A step starts when the step before it has ended, its tensors are back, and its memory is free. Because a
  copy in never takes memory that a later step needs, a choice can run if each step fits without the copies
  under way, for which the compute stream waits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from ..workspace.configuration import Infeasible
from .copies import Copy, CopySteps
from .events import Recorder, run_events
from .simulation import NO_SCHEDULE, RECOMPUTE, WINDOW, Simulator, encode
from .training import Choice, TrainingStep, check_choices

_UNLIMITED = 2**62


@dataclass(frozen=True, slots=True)
class Timeline:
    """A simulated training step: when each step and copy ran, and how much memory was in use.

    Attributes:
        starts_ms: the start of each step.
        ends_ms: the end of each step.
        copies: the copies in the order of their starts.
        memory: (milliseconds, bytes) whenever the bytes in memory change.
        step_bytes: the most bytes in memory while each step runs.
        peak: the most bytes in memory.
        compute_ms: milliseconds of all steps and replays.
    """

    starts_ms: tuple[float, ...]
    ends_ms: tuple[float, ...]
    copies: tuple[Copy, ...]
    memory: tuple[tuple[float, int], ...]
    step_bytes: tuple[int, ...]
    peak: int
    compute_ms: float

    @property
    def time_ms(self) -> float:
        """Milliseconds from the first step's start to the last step's end."""
        return self.ends_ms[-1] if self.ends_ms else 0.0

    @property
    def exposed_ms(self) -> float:
        """Milliseconds that the compute stream waits for copies."""
        ends = (0.0, *self.ends_ms)[: len(self.starts_ms)]
        return math.fsum(start - end for start, end in zip(self.starts_ms, ends, strict=True))

    @property
    def average(self) -> float:
        """The mean of the bytes in memory over time."""
        if not self.time_ms:
            return float(self.peak)
        ends = (*(at for at, _ in self.memory[1:]), self.time_ms)
        areas = ((end - at) * held for (at, held), end in zip(self.memory, ends, strict=True))
        return math.fsum(areas) / self.time_ms


@dataclass(frozen=True, slots=True)
class MemoryDecision:
    """A decision for a training step.

    Attributes:
        choices: the choice for each tensor.
        configurations: the index of each kernel's configuration.
        schedule: the steps that bound the copies; empty if they are as early as memory allows.
        timeline: the simulated training step.
        floor: the least memory with which the policy has an answer, in bytes.
        bound_ms: the time that every decision takes at least, however it copies; 0 for the policies of vDNN.
    """

    choices: tuple[Choice, ...]
    configurations: tuple[int, ...]
    schedule: Mapping[int, CopySteps]
    timeline: Timeline
    floor: int = 0
    bound_ms: float = 0.0


def play(
    work: TrainingStep,
    choices: Sequence[Choice],
    configurations: Sequence[int],
    schedule: Mapping[int, CopySteps] = NO_SCHEDULE,
    memory: int | None = None,
) -> MemoryDecision:
    """Return a decision with its simulation. Raises Infeasible if it does not fit the memory."""
    timeline = simulate(work, choices, configurations, memory=memory, schedule=schedule)
    return MemoryDecision(tuple(choices), tuple(configurations), schedule, timeline)


def simulate(
    work: TrainingStep,
    choices: Sequence[Choice],
    configurations: Sequence[int] = (),
    *,
    memory: int | None = None,
    window: int | None = WINDOW,
    schedule: Mapping[int, CopySteps] = NO_SCHEDULE,
) -> Timeline:
    """Simulate a training step with a choice for each saved tensor.

    Args:
        work: the training step.
        choices: the choice for each tensor.
        configurations: the index of each kernel's configuration.
        memory: the most bytes in memory; None for no limit.
        window: the most steps before a tensor is needed at which its copy in begins; None for no limit.
        schedule: the steps that bound the copies of single tensors.

    Raises:
        Infeasible: the choice cannot run within this memory. Its `need` is the least memory that is enough,
            or with a schedule, memory that is enough.
        ValueError: a tensor is recomputed that cannot be.
    """
    check_choices(work.tensors, choices)
    simulator, codes = Simulator(work), encode(choices)
    chosen = np.array(configurations, dtype=np.int64)
    workspace = simulator.workspace(codes, chosen)
    profile = simulator.held(codes) + workspace
    need = int(profile.max(initial=0))
    if memory is not None and need > memory:
        raise Infeasible(
            f"the choice does not fit {memory} bytes: it needs {need} bytes", limit=memory, need=need
        )
    limit = _UNLIMITED if memory is None else memory
    agenda = simulator.plan(codes, chosen, limit - profile, window, schedule)
    fixed = np.array([step.fixed for step in work.steps], dtype=np.int64)
    allocated = workspace + np.maximum(np.diff(fixed, prepend=fixed[:1]), 0)
    np.add.at(allocated, simulator.produced, simulator.bytes)
    replayed = codes == RECOMPUTE
    np.add.at(allocated, simulator.needs[replayed], simulator.bytes[replayed])
    absent = [0] * simulator.steps
    for i in agenda.in_order:
        absent[agenda.needs[i]] += agenda.sizes[i]
    recorder = Recorder(agenda, limit, allocated.tolist(), absent)
    if run_events(agenda, work.link, recorder=recorder) == math.inf:
        # The schedule wants a tensor back before there is memory for it.
        if memory is None:
            raise RuntimeError(f"step {len(recorder.ends_ms)} waits forever although memory has no limit")
        need = simulate(work, choices, configurations, window=window, schedule=schedule).peak
        raise Infeasible(
            f"the schedule does not fit {memory} bytes: {need} bytes are enough", limit=memory, need=need
        )
    return Timeline(
        tuple(recorder.starts_ms),
        tuple(recorder.ends_ms),
        tuple(recorder.copies),
        tuple(recorder.memory),
        tuple(recorder.step_bytes),
        recorder.peak,
        math.fsum(agenda.time_ms),
    )
