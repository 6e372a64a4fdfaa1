"""The reason why a collective takes long: its transfer, or ranks that arrive late."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from mucudnn.diagnosis.traces import Interval, RankTrace
from mucudnn.measuring.intervals import UNDECIDED, name_side

Key = tuple[str, str]  # the name of a collective, and its group
_MIXED = 1 / 3, 2 / 3  # the shares of arrival skew between which both reasons count
_REASONS: dict[tuple[str, ...], str] = {
    ("below", "below"): "transfer",
    ("above", "below"): "mixed",
    ("above", "above"): "arrival skew",
}


@dataclass(frozen=True)
class Collective:
    """All collectives of one name and group.

    Attributes:
        name: the name of the operation or the kernel.
        group: the ranks that take part, "" if the traces do not say.
        ms: the milliseconds of a step from the first rank's arrivals to the ends.
        skew_ms: those of them until the last rank has arrived.
        reason: "transfer", "arrival skew", "mixed" or "undecided".
    """

    name: str
    group: str
    ms: float
    skew_ms: float
    reason: str


def explain_collectives(traces: Sequence[RankTrace]) -> list[Collective]:
    """Return the collectives with the reasons why they are long, the longest first.

    A reason holds if the 95 % interval of the median share of arrival skew lies within its bounds. It is
    undecided otherwise, for fewer than three collectives, and if some rank's arrivals are missing.
    """
    together: dict[Key, list[Sequence[Interval]]] = defaultdict(list)
    for key, spans in match_collectives(traces):
        together[key].append([*spans.values()])
    for trace in traces:
        for key, own in _by_name_and_group(trace).items():
            together.setdefault(key, [[span] for span in own])
    steps, explained = max(trace.steps for trace in traces), []
    for key, calls in together.items():
        starts = [[span.start for span in spans] for spans in calls]
        lengths = [max(s.end for s in spans) - min(at) for spans, at in zip(calls, starts, strict=True)]
        skews = [max(at) - min(at) for at in starts]
        shares = [skew / (length or 1.0) for skew, length in zip(skews, lengths, strict=True)]
        sides = tuple(name_side(shares * (len(starts[0]) > 1), bound) for bound in _MIXED)
        ms, skew_ms = sum(lengths) / steps, sum(skews) / steps
        explained.append(Collective(*key, ms, skew_ms, _REASONS.get(sides, UNDECIDED)))
    return sorted(explained, key=lambda collective: -collective.ms)


def match_collectives(traces: Sequence[RankTrace]) -> Iterator[tuple[Key, Mapping[int, Interval]]]:
    """Yield the spans of each collective by the position of the rank's trace.

    Collectives of one name and group are matched in their order. Without a group, all ranks have to take
    part. A name of which some rank has more is not matched. The traces' clocks must agree.
    """
    collectives = [_by_name_and_group(trace) for trace in traces]
    for key in sorted(set[Key]().union(*collectives)):
        members = [rank for rank, own in enumerate(collectives) if key in own or not key[1]]
        spans = [collectives[rank].get(key, []) for rank in members]
        if len(members) > 1 and len({*map(len, spans)}) == 1:  # else some have a group of their own
            yield from ((key, dict(zip(members, each, strict=True))) for each in zip(*spans, strict=True))


def _by_name_and_group(trace: RankTrace) -> dict[Key, list[Interval]]:
    spans: dict[Key, list[Interval]] = defaultdict(list)
    for interval in trace.intervals["reduce"]:
        spans[interval.name, interval.group].append(interval)
    return spans
