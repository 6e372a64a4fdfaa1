"""The times from busy moments and the unconfirmed comparisons in the cache, for `mucudnn cache check`."""

from collections.abc import Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from rich.table import Table

import mucudnn
from mucudnn._native import parse_descriptor
from mucudnn.cli.terminal import table
from mucudnn.costs.cache import Cache
from mucudnn.costs.schema import MEASUREMENT, STEP_TIME, STEP_USES
from mucudnn.errors import shown
from mucudnn.output.text import milliseconds
from mucudnn.problems.descriptor import short_text

_DISTURBED_KEYS = (
    "problem", "pass", "library", "threads", "micro_batch", "algorithm", "time_ms", "wall_ms", "cpu_ms",
    "busy_tries",
)  # fmt: skip
# A comparison that contradicts kept times replaces or deletes them, so they are confirmed or not checked yet.
_WAYS = ("choices", "stock", "mixture")


def summarize_checks(path: Path) -> tuple[dict[str, Any], list[Table | str]]:
    """Return the disturbed measurements and the comparisons of steps in a cache: as JSON, and to print."""
    disturbed, steps, count = list[dict[str, Any]](), list[dict[str, Any]](), 0
    if path.exists():
        with Cache.read_only(path) as cache:
            rows = [row for row in cache.select(MEASUREMENT) if row["time_ms"] is not None]
            count = len(rows)
            disturbed = [{key: row[key] for key in _DISTURBED_KEYS} for row in rows if row["busy_tries"]]
            steps = list(_find_steps(cache))
    unconfirmed = [step for step in steps if not step["checks"]]
    lines: list[Table | str] = []
    if disturbed:
        lines += [_tabulate_disturbed(disturbed), ""]
    if unconfirmed:
        lines += [_tabulate_steps(unconfirmed), ""]
    lines.append(f"{len(disturbed)} of {count} measurements were disturbed.")
    if steps:
        lines.append(
            f"{len(unconfirmed)} of {len(steps)} comparisons of steps were not confirmed by a later one yet."
        )
    if disturbed:
        lines.append("Next: mucudnn benchmark --remeasure NETWORK, on a quiet machine")
    return {"measurements": count, "disturbed": disturbed, "steps": steps}, lines


def _find_steps(cache: Cache) -> Iterator[dict[str, Any]]:
    """Yield the comparisons of steps that this version of mucudnn made."""
    key = itemgetter(*STEP_USES.key)
    counts = {key(row): row for row in cache.select(STEP_USES)}
    rows = [row for row in cache.select(STEP_TIME) if row["version"] == mucudnn.__version__]
    for step, group in groupby(rows, key):
        times = {row["way"]: row["time_ms"] for row in group}
        if times.keys() >= {"choices", "stock"}:
            _, library, threads, problem, *_ = step
            count = counts.get(step, {"uses": 0, "checks": 0})
            yield {
                "problem": problem, "library": library, "threads": threads,
                **{f"{way}_ms": times.get(way) for way in _WAYS},
                "uses": count["uses"], "checks": count["checks"],
            }  # fmt: skip


def format_kernel(key: Any) -> str:
    """Return a short text for the problem that a row names."""
    try:
        return short_text(parse_descriptor(key)[0], mini_batch=False)
    except (TypeError, ValueError):
        return f"damaged: {shown(key)}"


def _tabulate_disturbed(disturbed: list[dict[str, Any]]) -> Table:
    rows = table("kernel", "pass", ">threads", ">micro-batch", "algorithm", ">ms", ">share", ">tries")
    for row in disturbed:
        rows.add_row(
            format_kernel(row["problem"]),
            row["pass"],
            *(str(row[name]) for name in ("threads", "micro_batch", "algorithm")),
            milliseconds(row["time_ms"]),
            _format_share(row["cpu_ms"], row["wall_ms"], row["threads"]),
            str(row["busy_tries"]),
        )
    return rows


def _tabulate_steps(steps: list[dict[str, Any]]) -> Table:
    rows = table("first kernel", ">threads", ">choices ms", ">PyTorch ms", ">mixture ms", ">steps since")
    for step in steps:
        rows.add_row(
            format_kernel(step["problem"]),
            str(step["threads"]),
            *(milliseconds(step[f"{way}_ms"]) for way in _WAYS),
            str(step["uses"]),
        )
    return rows


def _format_share(cpu_ms: float | None, wall_ms: float | None, threads: int) -> str:
    """Write the share of their time that the threads spent on the CPU; a dash if it is unknown."""
    return "–" if not cpu_ms or not wall_ms else f"{cpu_ms / (threads * wall_ms):.0%}"
