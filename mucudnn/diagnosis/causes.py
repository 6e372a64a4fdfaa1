"""The division of each rank's whole time into causes.

Each moment belongs to the first cause that applies: loading the next batch, including the operations that run
meanwhile, then computation, then waiting for another rank, then collectives. The rest is Python, the launch
of kernels, and sleep. In a collective a rank waits until the last rank has arrived.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from mucudnn.diagnosis.collectives import match_collectives
from mucudnn.diagnosis.traces import Interval, RankTrace

CAUSES = ("data", "compute", "wait", "transfer", "reduce", "rest")
AWAITED = "waits for rank "  # before the late rank's number in the name of a span


@dataclass(frozen=True)
class Shares:
    """One rank's milliseconds by cause.

    Attributes:
        rank: the rank.
        steps: the training steps in the trace.
        total_ms: the trace's length.
        ms: for each of `CAUSES` its milliseconds. Their sum is `total_ms`.
        spans: for each of `CAUSES` its disjoint spans, by start.
        is_pipeline: False if the rank waits for messages inside its operations, not between them.
        backward_ms: the milliseconds of the computation that are part of a backward pass.
    """

    rank: int
    steps: int
    total_ms: float
    ms: dict[str, float]
    spans: dict[str, list[Interval]]
    is_pipeline: bool
    backward_ms: float = 0.0

    @property
    def waits_for_messages(self) -> bool:
        """True if the rank waits for a message from another rank, not only in collectives."""
        return any(not span.name.startswith(AWAITED) for span in self.spans["wait"])

    def share(self, cause: str) -> float:
        """Return the part of the time that a cause takes, 0 to 1."""
        return self.ms[cause] / self.total_ms if self.total_ms else 0.0


def divide(traces: Sequence[RankTrace]) -> list[Shares]:
    """Return the causes of each rank.

    With the traces of several ranks, a receive is divided: the rank waits until both it and the sender have
    started, and then the data travel. The traces' clocks must agree, as they do on one machine. With a single
    trace, all of a receive is waiting.
    """
    late = collective_waits(traces)
    return [
        _divide(trace, _split_receives(trace, traces), own) for trace, own in zip(traces, late, strict=True)
    ]


def _divide(
    trace: RankTrace, receives: tuple[list[Interval], list[Interval]], late: Sequence[Interval]
) -> Shares:
    wait, transfer = receives
    by_priority = {
        "data": trace.intervals["data"],
        "compute": trace.intervals["compute"],
        "transfer": transfer,
        "wait": [*wait, *late],
        "reduce": trace.intervals["reduce"],
        "rest": [Interval(trace.start, trace.end)],
    }
    spans = paint(by_priority)
    ms = {cause: sum(span.length for span in spans[cause]) for cause in CAUSES}
    forward = paint({"backward": trace.backward, "forward": spans["compute"]})["forward"]
    return Shares(
        trace.rank, trace.steps, trace.end - trace.start, ms, spans, trace.is_pipeline,
        ms["compute"] - sum(span.length for span in forward),
    )  # fmt: skip


def _split_receives(trace: RankTrace, traces: Sequence[RankTrace]) -> tuple[list[Interval], list[Interval]]:
    """Return the waiting and the transferring spans of a rank's receives.

    The trace does not name the sender. With two ranks, messages arrive in the order in which they leave. With
    more ranks, the sender is assumed to be the rank whose send ends nearest to the receive's end.
    """
    sends = [send for other in traces if other is not trace for send in other.intervals["send"]]
    receives = trace.intervals["receive"]
    in_order = len(traces) == 2 and len(sends) == len(receives)
    wait, transfer = [], []
    for number, receive in enumerate(receives):
        if in_order:
            send = sends[number]
        else:
            started = [send for send in sends if send.start < receive.end]
            if not started:
                wait.append(receive)
                continue
            send = min(started, key=lambda span: abs(span.end - receive.end))
            sends.remove(send)
        middle = min(max(receive.start, send.start), receive.end)
        wait.append(Interval(receive.start, middle, receive.name))
        transfer.append(Interval(middle, receive.end, receive.name))
    return wait, transfer


def paint(layers: Mapping[str, Sequence[Interval]]) -> dict[str, list[Interval]]:
    """Return disjoint spans of each layer, by start.

    A moment belongs to the first layer with an interval there, and in it to the interval that began first.
    """
    intervals = [
        (layer, interval)
        for layer, own in layers.items()
        for interval in sorted(own, key=lambda interval: (interval.start, -interval.end))
    ]
    ends = np.array([(interval.start, interval.end) for _, interval in intervals]).reshape(-1, 2)
    edges = np.unique(ends)
    owners = np.full(len(edges), -1)  # the number of the interval from each edge to the next
    for number, (first, last) in reversed([*enumerate(np.searchsorted(edges, ends).tolist())]):
        owners[first:last] = number
    spans: dict[str, list[Interval]] = {layer: [] for layer in layers}
    for first, last in pairwise(np.flatnonzero(np.diff(owners, prepend=-2)).tolist()):
        if owners[first] >= 0:
            layer, interval = intervals[owners[first]]
            spans[layer].append(replace(interval, start=float(edges[first]), end=float(edges[last])))
    return spans


def collective_waits(traces: Sequence[RankTrace]) -> list[list[Interval]]:
    """Return the spans in which each rank waits in a collective until the last rank has arrived.

    Each span names the rank that it waits for.
    """
    waits: list[list[Interval]] = [[] for _ in traces]
    for _, spans in match_collectives(traces):
        last = max(spans, key=lambda rank: spans[rank].start)
        for rank, span in spans.items():
            arrival = min(spans[last].start, span.end)
            if arrival > span.start:
                waits[rank].append(Interval(span.start, arrival, f"{AWAITED}{traces[last].rank}"))
    return waits
