"""The times from busy moments and the unconfirmed comparisons in the cache, for `mucudnn cache check`."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import mucudnn
from mucudnn._native import parse_descriptor
from mucudnn.costs.cache import Cache
from mucudnn.costs.schema import MEASUREMENT, STEP_TIME, STEP_USES
from mucudnn.errors import shown
from mucudnn.output.answers import Answer, Lines, table
from mucudnn.problems.descriptor import short_text

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
            yield table(
                "kernel", "pass", ">threads", ">micro-batch", "algorithm", "ms>time ms", ">busy tries",
                rows=map(_with_kernel, self.disturbed),
            )  # fmt: skip
            yield ""
        if unconfirmed:
            yield table(
                "first kernel", ">threads", *(f"ms>{way} ms" for way in _WAYS), ">uses",
                rows=map(_with_kernel, unconfirmed),
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


def check(path: Path, arguments: argparse.Namespace) -> Checks:
    """Return the checks of a cache, which need not exist."""
    if not path.exists():
        return Checks(path, 0, (), ())
    with Cache.read_only(path) as cache:
        rows = [row for row in cache.select(MEASUREMENT) if row["time_ms"] is not None]
        disturbed = [row for row in rows if row["busy_tries"]]
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


def _with_kernel(row: dict[str, Any]) -> dict[str, Any]:
    name = format_kernel(row["problem"])
    return {**row, "kernel": name, "first_kernel": name}
