"""The remedies for ranks that wait for others, with the time that each saves in a simulation."""

from collections.abc import Sequence
from dataclasses import dataclass

from mucudnn.diagnosis.causes import Shares
from mucudnn.diagnosis.lateness import late_ranks
from mucudnn.solver.devices.pipelines import Stage, simulate_pipeline
from mucudnn.solver.devices.schedules import gpipe

MICRO_BATCHES = (2, 4, 8, 16, 32)
WORTH = 0.02  # a remedy that saves less is not named


@dataclass(frozen=True)
class Remedy:
    """A change that saves time.

    Attributes:
        cause: the cause that it removes.
        change: the change in words, such as `GPipe with 8 micro-batches`.
        before_ms: the milliseconds of a step in the trace.
        after_ms: the milliseconds of a step in the simulation.
    """

    cause: str
    change: str
    before_ms: float
    after_ms: float

    @property
    def saved(self) -> float:
        """The part of the step that the change saves, 0 to 1."""
        return 1 - self.after_ms / self.before_ms if self.before_ms else 0.0


def remedies(ranks: Sequence[Shares]) -> list[Remedy]:
    """Return the changes that save at least `WORTH` of a step, the most useful first."""
    candidates = [*_micro_batches(ranks), *_punctual_ranks(ranks)]
    return sorted((r for r in candidates if r.saved >= WORTH), key=lambda r: -r.saved)


def _punctual_ranks(ranks: Sequence[Shares]) -> list[Remedy]:
    """Return, for each rank that is late at collectives, that it arrives with the last of the others."""
    before = max((rank.total_ms / rank.steps for rank in ranks), default=0.0)
    return [
        Remedy("wait", f"rank {late.rank} on time", before, before - late.ms) for late in late_ranks(ranks)
    ]


def _micro_batches(ranks: Sequence[Shares]) -> list[Remedy]:
    """Return GPipe with the fewest micro-batches that remove nearly all waiting for other ranks.

    Each rank's computation is assumed to be its stage, a third of it forward and two thirds backward.
    """
    if len(ranks) < 2 or not any(rank.waits_for_messages and rank.is_pipeline for rank in ranks):
        return []
    before = max(rank.total_ms / rank.steps for rank in ranks)
    other = max((rank.total_ms - rank.ms["compute"] - rank.ms["wait"]) / rank.steps for rank in ranks)
    after = {}
    for parts in MICRO_BATCHES:
        work = [rank.ms["compute"] / rank.steps / parts for rank in ranks]
        stages = [Stage(ms / 3, 2 * ms / 3) for ms in work]
        after[parts] = simulate_pipeline(gpipe(len(ranks), parts), stages).time_ms
    best = min(after.values())
    parts, ms = next((parts, ms) for parts, ms in after.items() if ms <= best * 1.05)
    return [Remedy("wait", f"GPipe with {parts} micro-batches", before, ms + other)]
