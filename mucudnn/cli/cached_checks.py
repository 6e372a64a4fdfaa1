"""The times from busy moments and the unconfirmed comparisons in the cache, for `mucudnn cache check`."""

from pathlib import Path
from typing import Any

from rich.table import Table

import mucudnn
from mucudnn._native import parse_descriptor
from mucudnn.cli.terminal import table
from mucudnn.costs.cache import Cache
from mucudnn.errors import shown
from mucudnn.output.text import milliseconds
from mucudnn.problems.descriptor import short_text

_DISTURBED_KEYS = (
    "problem", "pass", "library", "threads", "micro_batch", "algorithm", "time_ms", "wall_ms", "cpu_ms",
    "busy_tries",
)  # fmt: skip
_DISTURBED = f"""
    SELECT {", ".join(_DISTURBED_KEYS)} FROM measurements WHERE busy_tries > 0
    ORDER BY device, library, threads, problem, pass, micro_batch, algorithm
"""
# A comparison that contradicts kept times replaces or deletes them, so they are confirmed or not checked yet.
_WAYS = ("choices", "stock", "mixture")
_STEP_KEYS = ("problem", "library", "threads", *(f"{way}_ms" for way in _WAYS), "uses", "checks")
_STEPS = f"""
    SELECT problem, library, threads,
      {", ".join(f"max(CASE way WHEN '{way}' THEN time_ms END) AS {way}_ms" for way in _WAYS)},
      max(CAST(ifnull(uses, 0) AS INTEGER), 0), max(CAST(ifnull(checks, 0) AS INTEGER), 0)
    FROM step_times LEFT JOIN step_uses USING (device, library, threads, problem, pass, step)
    WHERE version = ? GROUP BY device, library, threads, problem, pass, step
    HAVING choices_ms NOTNULL AND stock_ms NOTNULL ORDER BY device, library, threads, problem, pass, step
"""


def summarize_checks(path: Path) -> tuple[dict[str, Any], list[Table | str]]:
    """Return the disturbed measurements and the comparisons of steps in a cache: as JSON, and to print."""
    disturbed, steps, count = list[dict[str, Any]](), list[dict[str, Any]](), 0
    if path.exists():
        with Cache.read_only(path) as cache:
            disturbed = [dict(zip(_DISTURBED_KEYS, row, strict=True)) for row in cache.query(_DISTURBED)]
            rows = cache.query(_STEPS, (mucudnn.__version__,))
            steps = [dict(zip(_STEP_KEYS, row, strict=True)) for row in rows]
            ((count,),) = cache.query("SELECT count(time_ms) FROM measurements")
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
