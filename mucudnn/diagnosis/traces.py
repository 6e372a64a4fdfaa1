"""Traces of torch.profiler, in the JSON form that `export_chrome_trace` writes."""

import gzip
import json
import math
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mucudnn.errors import MucudnnError

KINDS = ("data", "compute", "receive", "reduce", "send")

_REDUCTIONS = ("all_reduce", "allreduce", "reduce_scatter", "all_gather", "allgather", "broadcast")
_BIGGEST = 2**32  # bytes of a trace


@dataclass(frozen=True, slots=True)
class Interval:
    """A span of time in which a rank did one kind of work, in milliseconds since the epoch."""

    start: float
    end: float
    name: str = ""

    @property
    def length(self) -> float:
        """The length in milliseconds."""
        return self.end - self.start


@dataclass(frozen=True)
class Trace:
    """A rank's work during some training steps.

    Attributes:
        rank: the rank, or the position of the file on the command line if the trace does not say.
        start: the first moment, in milliseconds since the epoch.
        end: the last moment.
        steps: the training steps that the trace holds, at least 1.
        intervals: for each of `KINDS` its spans, by start; they may overlap.
    """

    rank: int
    start: float
    end: float
    steps: int
    intervals: dict[str, list[Interval]]


def read_traces(paths: Iterable[str | os.PathLike[str]]) -> list[Trace]:
    """Return the traces of several ranks, in the order of their ranks.

    Raises MucudnnError for a file that cannot be read, that is no trace of torch.profiler, or whose rank
    another one has.
    """
    traces: dict[int, Trace] = {}
    for position, path in enumerate(paths):
        trace = _read(Path(path), position)
        if trace.rank in traces:
            raise MucudnnError(
                f"{path} is the trace of rank {trace.rank}, and so is another one: give each once"
            )
        traces[trace.rank] = trace
    return [traces[rank] for rank in sorted(traces)]


def _read(path: Path, position: int) -> Trace:
    wrong = f"{path} is not a trace of torch.profiler"
    try:
        if path.stat().st_size > _BIGGEST:
            raise MucudnnError(f"{path} has more than {_BIGGEST} bytes: record fewer steps")
        raw = path.read_bytes()
        content = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    except OSError as error:
        raise MucudnnError(f"the trace {path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError, EOFError) as error:
        raise MucudnnError(f"{wrong}: {error}") from None
    if not isinstance(content, dict) or not isinstance(content.get("traceEvents"), list):
        raise MucudnnError(f"{wrong}: it has no list 'traceEvents'")
    if "schemaVersion" not in content:
        raise MucudnnError(f"{wrong}: it has no 'schemaVersion', so another tool wrote it")
    info = content.get("distributedInfo")
    rank = info.get("rank") if isinstance(info, dict) else None
    base = content.get("baseTimeNanoseconds", 0)
    events = list(_complete_events(content["traceEvents"]))
    if not events or not isinstance(base, int):
        raise MucudnnError(f"{wrong}: it has no events with a time")
    return _make_trace(rank if isinstance(rank, int) else position, base / 1e6, events)


def _complete_events(events: Iterable[Any]) -> Iterator[dict[str, Any]]:
    for event in events:
        if not isinstance(event, dict) or event.get("ph") != "X" or not isinstance(event.get("name"), str):
            continue
        if event.get("cat") in (None, "Trace"):  # the span of the profiler itself
            continue
        times = event.get("ts"), event.get("dur")
        if all(isinstance(t, int | float) and math.isfinite(t) for t in times) and event["dur"] >= 0:
            yield event


def _make_trace(rank: int, base: float, events: list[dict[str, Any]]) -> Trace:
    on_gpu = any(event["cat"] == "kernel" for event in events)
    intervals: dict[str, list[Interval]] = {kind: [] for kind in KINDS}
    counts = {"ProfilerStep": 0, "Optimizer.step": 0, "DataLoader": 0}
    communicating = set() if on_gpu else _find_communicating(events)
    for event in events:
        name, start = event["name"], base + event["ts"] / 1e3
        interval = Interval(start, start + event["dur"] / 1e3, name)
        kind = None if id(event) in communicating else _kind_of(name, event["cat"], on_gpu)
        if kind:
            intervals[kind].append(interval)
        for mark in counts:
            counts[mark] += name.startswith(mark) or (mark == "DataLoader" and kind == "data")
    for spans in intervals.values():
        spans.sort(key=lambda one: (one.start, one.end))
    starts = [base + event["ts"] / 1e3 for event in events]
    ends = [base + (event["ts"] + event["dur"]) / 1e3 for event in events]
    steps = next((count for count in counts.values() if count), 1)
    return Trace(rank, min(starts), max(ends), steps, intervals)


def _find_communicating(events: Iterable[dict[str, Any]]) -> set[int]:
    """Return the ids of the operations on a CPU that call torch.distributed, for example to fetch a halo.

    They wait inside, so their own time is no computation. That of the operations that they call still is.
    """
    found: set[int] = set()
    open_ones: dict[object, list[dict[str, Any]]] = {}
    operations = (event for event in events if event["cat"] == "cpu_op")
    for event in sorted(operations, key=lambda one: (one["ts"], -one["dur"])):
        around = open_ones.setdefault(event.get("tid"), [])
        while around and around[-1]["ts"] + around[-1]["dur"] < event["ts"] + event["dur"]:
            around.pop()
        if event["name"].startswith("c10d::"):
            found.update(map(id, around))
        around.append(event)
    return found


def _kind_of(name: str, category: str, on_gpu: bool) -> str | None:
    """Return the kind of work that an event stands for; None if it stands for none of its own."""
    if name.startswith("enumerate(DataLoader)"):
        return "data"
    lower = name.lower()
    if category == "kernel":
        if not lower.startswith("nccl"):
            return "compute"
        return "receive" if "sendrecv" in lower else "reduce"
    if lower.startswith(("gloo:", "mpi:", "nccl:")) and not on_gpu:
        operation = lower.partition(":")[2]
        if operation.startswith(_REDUCTIONS):
            return "reduce"
        return "receive" if operation.startswith("recv") else "send" if operation.startswith("send") else None
    if category == "cpu_op" and not on_gpu and not lower.startswith("c10d::"):
        return "compute"
    return None
