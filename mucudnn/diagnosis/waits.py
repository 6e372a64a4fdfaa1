"""The time that ranks spend in a collective until the last rank has arrived."""

from collections import defaultdict
from collections.abc import Sequence

from mucudnn.diagnosis.traces import Interval, RankTrace

AWAITED = "waits for rank "  # before the late rank's number in the name of a span


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
                    waits[rank].append(Interval(span.start, arrival, f"{AWAITED}{traces[last].rank}"))
    return waits


def is_for_rank(span: Interval) -> bool:
    """Return whether a span of waiting is one in a collective, for a rank that is late."""
    return span.name.startswith(AWAITED)


def _by_name_and_group(trace: RankTrace) -> dict[tuple[str, str], list[Interval]]:
    spans: dict[tuple[str, str], list[Interval]] = defaultdict(list)
    for interval in trace.intervals["reduce"]:
        spans[interval.name, interval.group].append(interval)
    return spans
