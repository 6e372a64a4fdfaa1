"""Traces of torch.profiler, in the JSON form that `export_chrome_trace` writes."""

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from mucudnn.codec import parse_json
from mucudnn.diagnosis.events import BACKWARD, KINDS, Event, classify, count_steps, is_pipeline, read_events
from mucudnn.errors import MucudnnError
from mucudnn.input import read_packed

MOST_BYTES = 2**30  # a trace that gzip packed has this limit before and after


@dataclass(frozen=True, slots=True)
class Interval:
    """A span of time in which a rank did one kind of work, in milliseconds since the first trace began.

    Attributes:
        start: the first moment.
        end: the last moment.
        name: the name of the operation or the kernel.
        group: the ranks of a collective, as NCCL's traces write them; "" if the trace does not say.
    """

    start: float
    end: float
    name: str = ""
    group: str = ""

    @property
    def length(self) -> float:
        """The length in milliseconds."""
        return self.end - self.start


@dataclass(frozen=True)
class RankTrace:
    """A rank's work during some training steps.

    Attributes:
        rank: the rank, or the position of the file on the command line if the trace does not say.
        start: the first moment, in milliseconds since the first trace began.
        end: the last moment.
        steps: the training steps that the trace holds, at least 1.
        intervals: for each of `KINDS` its spans, sorted by start; they may overlap.
        is_pipeline: False if operations receive messages while they run, such as a halo.
        backward: the spans of functions that autograd's engine runs; they overlap.
    """

    rank: int
    start: float
    end: float
    steps: int
    intervals: dict[str, list[Interval]]
    is_pipeline: bool
    backward: list[Interval]


def read_traces(paths: Iterable[str | os.PathLike[str]]) -> list[RankTrace]:
    """Return the traces of several ranks, in the order of their ranks.

    Raises MucudnnError for a file that cannot be read, that is not a trace of torch.profiler, or whose
    rank another trace has.
    """
    traces: dict[int, RankTrace] = {}
    origin: int | None = None  # nanoseconds since the epoch, in which a float has no digits for a kernel
    for position, path in enumerate(paths):
        trace, origin = _read(Path(path), position, origin)
        if trace.rank in traces:
            raise MucudnnError(
                f"{path} is the trace of rank {trace.rank}, as another file is: give each rank's trace once"
            )
        traces[trace.rank] = trace
    return [traces[rank] for rank in sorted(traces)]


def _read(path: Path, position: int, origin: int | None) -> tuple[RankTrace, int]:
    try:
        return _parse(read_packed(path, most=MOST_BYTES), position, origin)
    except OSError as error:
        raise MucudnnError(f"the trace {path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise MucudnnError(f"{path} is not a trace of torch.profiler: {error}") from None


def _parse(text: bytes, position: int, origin: int | None) -> tuple[RankTrace, int]:
    if not text:
        raise ValueError("it is empty")
    content = parse_json(text)
    if not isinstance(content, dict) or not isinstance(content.get("traceEvents"), list):
        raise ValueError("it has no list 'traceEvents'")
    if "schemaVersion" not in content:
        raise ValueError("it has no 'schemaVersion', so another tool wrote it")
    info = content.get("distributedInfo")
    info = info if isinstance(info, dict) else {}
    rank = info.get("rank")
    base = content.get("baseTimeNanoseconds", 0)
    if type(base) is not int or not 0 <= base < 2**63:
        raise ValueError("'baseTimeNanoseconds' is not a number of nanoseconds")
    events = list(read_events(content["traceEvents"]))
    processes = {event.lane[0] for event in events if event.category == "cpu_op"}
    if len(processes) > 1:
        raise ValueError(f"it holds the work of {len(processes)} processes: give each rank's own file")
    if info.get("backend") == "nccl" and not any(event.category == "kernel" for event in events):
        raise ValueError("it lacks the GPU's work: record it with ProfilerActivity.CUDA")
    kinds = classify(events)
    if not any(kind not in (None, "data") for _, kind in kinds):
        raise ValueError("it has no operations: record it with ProfilerActivity.CPU")
    if origin is None:
        origin = base + round(1e3 * min(event.start for event, _ in kinds))
    rank = rank if type(rank) is int and 0 <= rank < 2**31 else position
    return _make_trace(rank, (base - origin) / 1e3, kinds, is_pipeline(events)), origin


def _make_trace(
    rank: int, shift: float, kinds: list[tuple[Event, str | None]], is_of_pipeline: bool
) -> RankTrace:
    """Return a trace, whose events begin `shift` microseconds later than they say."""
    intervals: dict[str, list[Interval]] = {kind: [] for kind in KINDS}
    backward = []
    for event, kind in kinds:
        start = event.start + shift  # before the length is added, which a large start would round
        interval = Interval(start / 1e3, (start + event.length) / 1e3, event.name, event.group)
        if kind:
            intervals[kind].append(interval)
        if event.name.startswith(BACKWARD):
            backward.append(interval)
    for spans in intervals.values():
        spans.sort(key=lambda span: (span.start, span.end))
    start = (min(event.start for event, _ in kinds) + shift) / 1e3
    end = (max(event.end for event, _ in kinds) + shift) / 1e3
    return RankTrace(rank, start, end, count_steps(kinds), intervals, is_of_pipeline, backward)
