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

from ..workspace.configuration import Infeasible
from .copies import Copy, CopySteps, Link
from .simulation import Simulation
from .training import Choice, Run, SavedTensor, check_choices

WINDOW = 6  # steps


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


def simulate(
    runs: Sequence[Run],
    tensors: Sequence[SavedTensor],
    choices: Sequence[Choice],
    link: Link,
    *,
    memory: int | None = None,
    window: int | None = WINDOW,
    schedule: Mapping[int, CopySteps] | None = None,
) -> Timeline:
    """Simulate a training step with a choice for each saved tensor.

    Args:
        runs: the steps in order.
        tensors: the saved tensors.
        choices: the choice for each tensor.
        link: the copy engines.
        memory: the most bytes in memory; None for no limit.
        window: the most steps before a tensor is needed at which its copy in begins; None for no limit.
        schedule: the steps that bound the copies of single tensors.

    Raises:
        Infeasible: the choice cannot run within this memory. Its `need` is the least memory that is enough,
            or with a schedule, memory that is enough.
        ValueError: a tensor is recomputed that cannot be.
    """
    check_choices(tensors, choices)
    simulation = Simulation(runs, tensors, choices, link, memory, window, schedule or {})
    need = max(simulation.profile.tolist(), default=0)
    if memory is not None and need > memory:
        raise Infeasible(
            f"the choice does not fit {memory} bytes: it needs {need} bytes", limit=memory, need=need
        )
    if not simulation.run():  # a schedule wants a tensor back before there is memory for it
        if memory is None:
            raise RuntimeError(f"step {simulation.step} waits forever although memory has no limit")
        need = simulate(runs, tensors, choices, link, window=window, schedule=schedule).peak
        raise Infeasible(
            f"the schedule does not fit {memory} bytes: {need} bytes are enough", limit=memory, need=need
        )
    return Timeline(
        tuple(simulation.starts_ms),
        tuple(simulation.ends_ms),
        tuple(simulation.copies),
        tuple(simulation.memory),
        tuple(simulation.step_bytes),
        simulation.peak,
        simulation.compute_ms,
    )


def required_bytes(
    runs: Sequence[Run], tensors: Sequence[SavedTensor], choices: Sequence[Choice], link: Link
) -> list[int]:
    """Return the bytes that each step needs if no copy is under way, the maximum of which is enough."""
    required: list[int] = Simulation(runs, tensors, choices, link, None, None, {}).profile.tolist()
    return required
