"""The ranks that arrive late at collectives, where all others wait for the last one."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mucudnn.diagnosis.causes import AWAITED, Shares


@dataclass(frozen=True)
class Lateness:
    """A rank that others wait for in collectives.

    Attributes:
        rank: the late rank.
        ms: the most milliseconds of a step that another rank waits for it.
        part: the part of its step that takes longer than the median of the other ranks: "loader", "forward",
            "backward" or "rest", which is Python, launches and sleep.
        part_ms: the milliseconds of that part in a step.
        usual_ms: the median of the other ranks.
    """

    rank: int
    ms: float
    part: str
    part_ms: float
    usual_ms: float


def late_ranks(ranks: Sequence[Shares]) -> list[Lateness]:
    """Return the ranks that others wait for in collectives, the latest first."""
    delays = []
    for late in ranks:
        others = [rank for rank in ranks if rank is not late]
        waited = max((_waited_for(late.rank, rank) / rank.steps for rank in others), default=0.0)
        if waited:
            parts, usual = _parts(late), [_parts(rank) for rank in others]
            medians = {part: statistics.median(own[part] for own in usual) for part in parts}
            part = max(parts, key=lambda part: parts[part] - medians[part])
            delays.append(Lateness(late.rank, waited, part, parts[part], medians[part]))
    return sorted(delays, key=lambda lateness: -lateness.ms)


def _waited_for(late: int, rank: Shares) -> float:
    return sum(span.length for span in rank.spans["wait"] if span.name == f"{AWAITED}{late}")


def _parts(rank: Shares) -> dict[str, float]:
    """Return the milliseconds of the parts of a rank's step, without those in which it waits."""
    ms = {
        "loader": rank.ms["data"],
        "forward": rank.ms["compute"] - rank.backward_ms,
        "backward": rank.backward_ms,
        "rest": rank.ms["rest"],
    }
    return {part: own / rank.steps for part, own in ms.items()}
