"""The times from busy moments and the unconfirmed comparisons in the cache, for `mucudnn cache check`."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import mucudnn
from mucudnn._native import parse_descriptor
from mucudnn.cli.terminal import Answer, Lines, table
from mucudnn.costs.cache import Cache
from mucudnn.costs.schema import MEASUREMENT, STEP_TIME, STEP_USES
from mucudnn.errors import shown
from mucudnn.problems.descriptor import short_text

_DISTURBED_KEYS = (
    "problem", "pass", "library", "threads", "micro_batch", "algorithm", "time_ms", "wall_ms", "cpu_ms",
    "busy_tries",
)  # fmt: skip
# A comparison that contradicts kept times replaces or deletes them, so they are confirmed or not checked yet.
_WAYS = ("choices", "stock", "mixture")


@dataclass(frozen=True)
class Checks(Answer):
    """The disturbed measurements and the comparisons of steps in a cache."""

    path: Path
    measurements: int
    disturbed: Sequence[dict[str, Any]]
    steps: Sequence[dict[str, Any]]

    def lines(self) -> Lines:
        """Yield tables of the measurements and comparisons to repeat, and their numbers."""
        unconfirmed = [step for step in self.steps if not step["checks"]]
        if self.disturbed:
            keys = itemgetter("pass", "threads", "micro_batch", "algorithm", "time_ms")
            yield table(
                "kernel",
                "pass",
                ">threads",
                ">micro-batch",
                "algorithm",
                "ms>ms",
                ">share",
                ">tries",
                rows=(
                    (format_kernel(row["problem"]), *keys(row), _find_share(row), row["busy_tries"])
                    for row in self.disturbed
                ),
            )
            yield ""
        if unconfirmed:
            yield table(
                "first kernel", ">threads", *(f"ms>{way} ms" for way in _WAYS), ">steps since",
                rows=(
                    (format_kernel(row["problem"]), row["threads"], *(row[f"{way}_ms"] for way in _WAYS),
                     row["uses"])
                    for row in unconfirmed
                ),
            )  # fmt: skip
            yield ""
        yield f"{len(self.disturbed)} of {self.measurements} measurements were disturbed."
        if self.steps:
            yield (
                f"{len(unconfirmed)} of {len(self.steps)} comparisons of steps were not confirmed by a later "
                "one yet."
            )
        if self.disturbed:
            yield "Next: mucudnn optimize NETWORK --measure-only --remeasure, on a quiet machine"


def find_checks(path: Path) -> Checks:
    """Return the checks of a cache, which need not exist."""
    if not path.exists():
        return Checks(path, 0, (), ())
    with Cache.read_only(path) as cache:
        rows = [row for row in cache.select(MEASUREMENT) if row["time_ms"] is not None]
        disturbed = [{key: row[key] for key in _DISTURBED_KEYS} for row in rows if row["busy_tries"]]
        return Checks(path, len(rows), disturbed, list(_find_steps(cache)))


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


def _find_share(row: dict[str, Any]) -> str | None:
    """Return the share of their time that the threads spent on the CPU, or None if it is unknown."""
    cpu_ms, wall_ms = row["cpu_ms"], row["wall_ms"]
    return f"{cpu_ms / (row['threads'] * wall_ms):.0%}" if cpu_ms and wall_ms else None
