"""The ranks that arrive late at collectives, where all others wait for the last one."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mucudnn.diagnosis.traces import Interval, RankTrace

if TYPE_CHECKING:
    from mucudnn.diagnosis.causes import Shares

_AWAITED = "waits for rank "


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


def collective_waits(traces: Sequence[RankTrace]) -> list[list[Interval]]:
    """Return the spans in which each rank waits in a collective until the last rank has arrived.

    Each span names the rank that it waits for. Collectives of one name and group are matched in their order.
    Without a group, all ranks have to take part. A name of which some rank has more is not matched. The
    traces' clocks must agree.
    """
    waits: list[list[Interval]] = [[] for _ in traces]
    collectives = [_by_name_and_group(trace) for trace in traces]
    for key in set[tuple[str, str]]().union(*collectives):
        _, group = key
        members = [rank for rank, own in enumerate(collectives) if key in own or not group]
        own = {rank: collectives[rank].get(key, []) for rank in members}
        if len(members) < 2 or len({*map(len, own.values())}) != 1:
            continue  # some ranks have a group of their own
        for together in zip(*own.values(), strict=True):
            spans = dict(zip(members, together, strict=True))
            last = max(members, key=lambda rank: spans[rank].start)
            for rank, span in spans.items():
                arrival = min(spans[last].start, span.end)
                if arrival > span.start:
                    waits[rank].append(Interval(span.start, arrival, f"{_AWAITED}{traces[last].rank}"))
    return waits


def is_for_rank(span: Interval) -> bool:
    """Return whether a span of waiting is one in a collective, for a rank that is late."""
    return span.name.startswith(_AWAITED)


def _by_name_and_group(trace: RankTrace) -> dict[tuple[str, str], list[Interval]]:
    spans: dict[tuple[str, str], list[Interval]] = defaultdict(list)
    for interval in trace.intervals["reduce"]:
        spans[interval.name, interval.group].append(interval)
    return spans


def late_ranks(ranks: Sequence[Shares]) -> list[Lateness]:
    """Return the ranks that others wait for in collectives, the latest first."""
    found = []
    for late in ranks:
        others = [rank for rank in ranks if rank is not late]
        waited = max((_waited_for(late.rank, rank) / rank.steps for rank in others), default=0.0)
        if waited:
            parts, usual = _parts(late), [_parts(rank) for rank in others]
            medians = {part: statistics.median(own[part] for own in usual) for part in parts}
            part = max(parts, key=lambda part: parts[part] - medians[part])
            found.append(Lateness(late.rank, waited, part, parts[part], medians[part]))
    return sorted(found, key=lambda lateness: -lateness.ms)


def _waited_for(late: int, rank: Shares) -> float:
    return sum(span.length for span in rank.spans["wait"] if span.name == f"{_AWAITED}{late}")


def _parts(rank: Shares) -> dict[str, float]:
    """Return the milliseconds of the parts of a rank's step, without those in which it waits."""
    ms = {
        "loader": rank.ms["data"],
        "forward": rank.ms["compute"] - rank.backward_ms,
        "backward": rank.backward_ms,
        "rest": rank.ms["rest"],
    }
    return {part: own / rank.steps for part, own in ms.items()}
