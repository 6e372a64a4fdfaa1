"""The tables of whole networks: a line for each network, a column for each mode or limit."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence

from bench.lib.answers import NOT_MEASURED, table
from bench.lib.record import Record
from bench.suites.networks.networks import (
    DEFAULT,
    LIMIT,
    LIMITS,
    NETWORKS,
    PROMISES,
    SPEEDUP,
    cases,
    name,
    parts_of,
)

WORST = 0.97  # speedups below are marked
_COLUMNS = (LIMITS[1], LIMITS[0], LIMITS[2])  # from the smallest to the largest
FIRST, PEAK = "first", "peak"  # in a record's details: both relative to stock PyTorch
Rows = Mapping[str, Sequence[Record]]  # the records of a row, of one machine or several, by its name


def default_table(records: Iterable[Record]) -> list[str]:
    """Return the table of the default cases on one machine: speedups within LIMIT."""
    rows = _by_name(records)
    lines = []
    for network in DEFAULT:
        modes = [name(case, LIMIT) for case in cases(everything=False) if case.network == network]
        speedups = (_speedup(rows.get(mode, [])) for mode in modes)
        details = (_most([rows.get(modes[0], [])], detail) for detail in (FIRST, PEAK))
        lines.append((network, NETWORKS[network][0], *speedups, *details))
    head = ("network", "kind", "training", "inference", "first step of training", "peak memory of training")
    return [f"{SPEEDUP} within {LIMIT}, N=16, two threads", "", *table(head, lines)]


def promises_table(records: Iterable[Record]) -> list[str]:
    """Return the table of fast, strict and batch-invariant models on one machine: speedups within LIMIT."""
    rows, lines, columns = _by_name(records), [], []
    for network in DEFAULT:
        names = [
            name(case, limit)
            for case in cases(everything=False)
            if case.network == network
            for limit in PROMISES
        ]
        values = [statistics.geometric_mean(own) for row in names if (own := _values(rows.get(row, [])))]
        if len(values) == len(names):
            columns.append(values)
            lines.append((network, *(f"{value:.2f}" for value in values)))
    if columns:
        means = [statistics.geometric_mean(column) for column in zip(*columns, strict=True)]
        count = len(PROMISES)
        over_fast = (mean / means[place // count * count] for place, mean in enumerate(means))
        lines.append(("geometric mean", *(f"{mean:.2f}" for mean in means)))
        lines.append(("its ratio to fast", *(f"{ratio:.2f}" for ratio in over_fast)))
    words = ("fast", "strict", "batch-invariant")
    head = ("network", *(f"{mode}, {word}" for mode in ("training", "inference") for word in words))
    return [f"{SPEEDUP} within {LIMIT}, N=16, two threads", "", *table(head, lines)]


def large_tables(records: Iterable[Record]) -> list[str]:
    """Return the figures of all rows together, then a table for each setting.

    A row that several machines have measured shows the geometric mean of their speedups.
    """
    rows = _by_name(records)
    lines = [*table(("", "figure"), _summary(rows)), ""]
    for setting in dict.fromkeys(case.setting for case in cases()):
        if measured := _lines(setting, rows):
            title = setting[0].upper() + setting[1:]
            head = ("network", "kind", *_COLUMNS, "first step", "peak memory")
            lines += [f"**{title}**: {SPEEDUP} within each limit", "", *table(head, measured), ""]
    return lines


def _by_name(records: Iterable[Record]) -> Rows:
    rows: dict[str, list[Record]] = {}
    for record in records:
        rows.setdefault(record.case, []).append(record)
    return rows


def _values(row: Iterable[Record]) -> list[float]:
    return [record.value for record in row if record.value is not None]


def _summary(rows: Rows) -> list[tuple[str, str]]:
    measured = {row: values for row, records in rows.items() if (values := _values(records))}
    means = {row: statistics.geometric_mean(values) for row, values in measured.items()}
    runs = [run for row in rows.values() for r in row for run in r.details.get("runs", _values([r]))]
    below = [run for run in runs if run < WORST]
    modes = {
        mode: [mean for row, mean in means.items() if parts_of(row)[1].startswith(mode)]
        for mode in ("training", "inference")
    }
    details = [record.details for row in measured for record in rows[row] if record.value is not None]
    failed, total = len(rows) - len(measured), sum(1 for _ in cases()) * len(LIMITS)
    lowest = f", down to {min(below):.2f}" if below else ""
    return [
        ("rows measured", f"{len(means)} of {total}" + (f", {failed} failed" if failed else "")),
        *((f"geometric mean of {SPEEDUP}, {mode}", _mean(values)) for mode, values in modes.items()),
        (f"runs below {WORST}", f"{len(below)} of {len(runs)}{lowest}"),
        ("first step in stock steps", _mean([of[FIRST] for of in details])),
        ("peak memory over stock", _mean([of[PEAK] for of in details])),
    ]


def _mean(values: Sequence[float]) -> str:
    if not values:
        return NOT_MEASURED
    mean, least, most = statistics.geometric_mean(values), min(values), max(values)
    return f"{mean:.2f}, {least:.2f} to {most:.2f}, of {len(values)}"


def _lines(setting: str, rows: Rows) -> list[tuple[str, ...]]:
    """Return a line for each network that has figures in a setting, or failed there."""
    lines = []
    for network, (kind, _) in NETWORKS.items():
        limits = [rows.get(f"{network}, {setting}, {limit}", []) for limit in _COLUMNS]
        if any(limits):
            cells = (_speedup(row) for row in limits)
            lines.append((network, kind, *cells, _most(limits, FIRST), _most(limits, PEAK)))
    return lines


def _speedup(row: Sequence[Record]) -> str:
    if not row:
        return ""
    if not (values := _values(row)):
        return "failed"
    mean = statistics.geometric_mean(values)
    return f"**{mean:.3f}**" if mean < WORST else f"{mean:.2f}"


def _most(limits: Iterable[Sequence[Record]], detail: str) -> str:
    """Return the largest of the limits' means, the worst one."""
    measured = [[record.details[detail] for record in row if record.value is not None] for row in limits]
    means = [statistics.geometric_mean(values) for values in measured if values]
    return f"{max(means):.2f}" if means else ""
