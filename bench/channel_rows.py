"""The figures of channels beside the mini-batch: their names, and a summary of them."""

from __future__ import annotations

import statistics
from collections import defaultdict

from bench.record import Record

BENCH = "channels"
SPEEDUP = "speedup over the best along the mini-batch alone"
HEAD = ("limit", "pass", "kernels", "divided", "mean of all", "of the divided", "least", "most")


def summarize(records: list[Record]) -> list[tuple[str, ...]]:
    """Return the cells below `HEAD` for each limit and pass; means are geometric."""
    speedups: dict[tuple[str, str], list[float]] = defaultdict(list)
    divided: dict[tuple[str, str], list[float]] = defaultdict(list)
    for record in records:
        place = record.details["limit"], record.details["pass"].replace("_", " ")
        if record.value is not None:
            speedups[place].append(record.value)
            if "groups_ms" in record.details:
                divided[place].append(record.value)
    rows = []
    for place, found in speedups.items():
        figures = statistics.geometric_mean(found), *_mean(divided[place]), min(found), max(found)
        counts = str(len(found)), str(len(divided[place]))
        rows.append((*place, *counts, *(f"{value:.2f}" for value in figures)))
    return rows


def _mean(values: list[float]) -> tuple[float]:
    return (statistics.geometric_mean(values or [1.0]),)
