"""The division of each rank's whole time into causes.

Each moment belongs to the first cause that applies: loading the next batch, including the operations that run
meanwhile, then computation, then waiting for another rank, then collectives. The rest is Python, the launch
of kernels, and sleep. In a collective a rank waits until the last rank has arrived.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mucudnn.diagnosis.traces import Interval, RankTrace
from mucudnn.diagnosis.waits import collective_waits, is_for_rank

CAUSES = ("data", "compute", "wait", "transfer", "reduce", "rest")


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
        return any(not is_for_rank(span) for span in self.spans["wait"])

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
    spans: dict[str, list[Interval]] = {}
    taken: list[Interval] = []
    for cause, intervals in by_priority.items():
        spans[cause] = subtract(unite(intervals), taken)
        taken = unite([*taken, *spans[cause]])
    ms = {cause: sum(span.length for span in spans[cause]) for cause in CAUSES}
    by_cause = {cause: spans[cause] for cause in CAUSES}
    forward = subtract(spans["compute"], unite(trace.backward))
    return Shares(
        trace.rank, trace.steps, trace.end - trace.start, ms, by_cause, trace.is_pipeline,
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


def unite(intervals: Sequence[Interval]) -> list[Interval]:
    """Return disjoint spans that cover the same time, sorted by start."""
    united: list[Interval] = []
    for interval in sorted(intervals, key=lambda i: i.start):
        if united and interval.start <= united[-1].end:
            if interval.end > united[-1].end:
                united[-1] = Interval(united[-1].start, interval.end, united[-1].name)
        elif interval.end > interval.start:
            united.append(interval)
    return united


def subtract(spans: Sequence[Interval], others: Sequence[Interval]) -> list[Interval]:
    """Return the parts of disjoint spans outside other disjoint spans; both are sorted by start."""
    left: list[Interval] = []
    first = 0
    for span in spans:
        start = span.start
        while first < len(others) and others[first].end <= start:
            first += 1
        for other in others[first:]:
            if other.start >= span.end:
                break
            if other.start > start:
                left.append(Interval(start, other.start, span.name))
            start = max(start, other.end)
        if start < span.end:
            left.append(Interval(start, span.end, span.name))
    return left
