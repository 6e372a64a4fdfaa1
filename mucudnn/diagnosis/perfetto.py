"""Measured and simulated timelines in the JSON form that Perfetto reads (ui.perfetto.dev)."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

from mucudnn.diagnosis.causes import CAUSES, Shares
from mucudnn.diagnosis.remedies import Remedy
from mucudnn.solver.devices.pipelines import PipelineTimeline

_SIMULATED = 10_000  # the first process number of simulated ranks


def write_timelines(ranks: Sequence[Shares], remedies: Sequence[Remedy]) -> str:
    """Return the text of a trace with each rank's causes, and the pipelines that remedies simulate.

    All begin at 0. Each rank is a process in the trace, and each cause is a thread of it.
    """
    start = min((span.start for rank in ranks for spans in rank.spans.values() for span in spans), default=0)
    events: list[dict[str, Any]] = []
    for rank in ranks:
        events.append(_name(rank.rank, f"rank {rank.rank}, measured"))
        for number, cause in enumerate(CAUSES):
            events.append(_name(rank.rank, cause, thread=number))
            for span in rank.spans[cause]:
                name = span.name if cause == "compute" else cause
                events.append(_event(rank.rank, number, name, span.start - start, span.length))
    for remedy in remedies:
        if remedy.timeline is not None:
            events += pipeline_events(remedy.timeline, f"simulated: {remedy.change}")
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms"}) + "\n"


def pipeline_events(timeline: PipelineTimeline, title: str) -> Iterator[dict[str, Any]]:
    """Yield the events of a simulated pipeline, each rank a process of its own."""
    columns = zip(timeline.schedule.orders, timeline.starts_ms, timeline.ends_ms, strict=True)
    for rank, (order, starts, ends) in enumerate(columns):
        yield _name(_SIMULATED + rank, f"rank {rank}, {title}")
        for task, start, end in zip(order, starts, ends, strict=True):
            yield _event(_SIMULATED + rank, 0, str(task), start, end - start)


def _name(process: int, name: str, thread: int | None = None) -> dict[str, Any]:
    kind = "process_name" if thread is None else "thread_name"
    return {"ph": "M", "pid": process, "tid": thread or 0, "name": kind, "args": {"name": name}}


def _event(process: int, thread: int, name: str, start_ms: float, length_ms: float) -> dict[str, Any]:
    return {
        "ph": "X", "pid": process, "tid": thread, "name": name, "ts": start_ms * 1e3, "dur": length_ms * 1e3
    }  # fmt: skip
