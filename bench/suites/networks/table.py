"""The tables of whole networks: a line for each case, a column for each limit."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence

from bench.lib.answers import NOT_MEASURED, table
from bench.lib.record import Record
from bench.suites.networks.rows import (
    DEFAULT,
    FIRST,
    LIMIT,
    LIMITS,
    NETWORKS,
    PEAK,
    SPEEDUP,
    cases,
    name,
    parts_of,
)

WORST = 0.97  # speedups below are marked
_MODES = ("training", "inference")
_COLUMNS = (LIMITS[1], LIMITS[0], LIMITS[2])  # from the smallest to the largest
Runs = dict[str, list[float]]  # the values of all runs, by the name of the row


def text(records: Iterable[Record]) -> str:
    """Return the tables of one machine: the figures of all rows together, then a table for each setting."""
    values: dict[str, Runs] = {SPEEDUP: {}, FIRST: {}, PEAK: {}}
    failed: set[str] = set()
    unsure: set[str] = set()  # rows of which a run has an interval that reaches WORST
    same: list[float] = []  # speedups of runs whose models decided for PyTorch's own convolutions
    for record in records:
        if record.value is None:
            failed.add(record.case)
        else:
            values[record.metric].setdefault(record.case, []).append(record.value)
        if record.details.get("interval", (0.0, 0.0))[1] >= WORST:
            unsure.add(record.case)
        if record.details.get("verdict") == "stock" and record.value is not None:
            same.append(record.value)
    failed -= values[SPEEDUP].keys()
    lines = [*table(("", "figure"), _summary(values, failed, unsure, same)), ""]
    for setting in dict.fromkeys(case.setting for case in cases()):
        rows = _rows(setting, values, failed)
        if rows:
            title = setting[0].upper() + setting[1:]
            head = ("network", "kind", *_COLUMNS, "first step", "peak memory")
            lines += [f"**{title}**: {SPEEDUP} within each limit", "", *table(head, rows), ""]
    return "\n".join(lines)


def default_table(records: Sequence[Record]) -> list[str]:
    """Return the table of the cases that `python -m bench run networks` measures: speedups within LIMIT."""
    values: dict[str, Runs] = {SPEEDUP: {}, FIRST: {}, PEAK: {}}
    for record in records:
        if record.value is not None:
            values[record.metric].setdefault(record.case, []).append(record.value)
    rows = []
    for network in DEFAULT:
        training, inference = (
            name(case, LIMIT) for case in cases(everything=False) if case.network == network
        )
        cells = [_cell(values[SPEEDUP].get(case), False) for case in (training, inference)]
        most = (_most([values[metric].get(training, [])]) for metric in (FIRST, PEAK))
        rows.append((network, NETWORKS[network][0], *cells, *most))
    head = ("network", "kind", "training", "inference", "first step of training", "peak memory of training")
    return [f"{SPEEDUP} within {LIMIT}, N=16, two threads", "", *table(head, rows)]


def together(machines: Sequence[Iterable[Record]]) -> str:
    """Return figures of several machines: the rows that any has measured, and how their speedups agree.

    Of several runs on one machine the mean counts.
    """
    by_row: dict[str, list[float]] = {}  # a value of each machine
    for records in machines:
        runs: Runs = {}
        for record in records:
            if record.metric == SPEEDUP and record.value is not None:
                runs.setdefault(record.case, []).append(record.value)
        for row, values in runs.items():
            by_row.setdefault(row, []).append(statistics.mean(values))
    total = sum(1 for _ in cases()) * len(LIMITS)
    means = {row: statistics.geometric_mean(values) for row, values in by_row.items()}
    everything = [value for values in by_row.values() for value in values]
    several = [row for row, values in by_row.items() if len(values) > 1]
    figures = [
        ("rows measured on at least one machine", f"{len(by_row)} of {total}"),
        *((f"geometric mean of {SPEEDUP}, {mode}", _mean(_of_mode(means, mode))) for mode in _MODES),
        (f"values below {WORST}", f"{sum(value < WORST for value in everything)} of {len(everything)}"),
        (f"rows measured on several machines, and those of them below {WORST} on each",
         f"{len(several)}, {sum(max(by_row[row]) < WORST for row in several)}"),
    ]  # fmt: skip
    return "\n".join(["**All machines together**", "", *table(("", "figure"), figures)])


def _summary(
    values: dict[str, Runs], failed: set[str], unsure: set[str], same: Sequence[float]
) -> list[tuple[str, str]]:
    speedups = values[SPEEDUP]
    total = sum(1 for _ in cases()) * len(LIMITS)
    means = {row: statistics.mean(runs) for row, runs in speedups.items()}
    below = sorted((mean, row) for row, mean in means.items() if mean < WORST)
    return [
        ("rows measured", f"{len(means)} of {total}" + (f", {len(failed)} failed" if failed else "")),
        *((f"geometric mean of {SPEEDUP}, {mode}", _mean(_of_mode(means, mode))) for mode in _MODES),
        ("the same, of runs that keep PyTorch's own convolutions", _mean(same)),
        (f"rows below {WORST}", f"{len(below)}" + (f"; the lowest is {below[0][1]}" if below else "")),
        ("of these with all of their intervals below", f"{sum(row not in unsure for _, row in below)}"),
        ("difference between two runs of a row", _noise(speedups)),
        (FIRST, _mean([statistics.mean(runs) for runs in values[FIRST].values()])),
        (PEAK, _mean([statistics.mean(runs) for runs in values[PEAK].values()])),
    ]  # fmt: skip


def _of_mode(means: dict[str, float], mode: str) -> list[float]:
    return [mean for row, mean in means.items() if parts_of(row)[1].startswith(mode)]


def _mean(means: Sequence[float]) -> str:
    if not means:
        return NOT_MEASURED
    return f"{statistics.geometric_mean(means):.2f}, {min(means):.2f} to {max(means):.2f}, of {len(means)}"


def _noise(speedups: Runs) -> str:
    """Return the largest and the median difference between runs, in percent of the row's mean."""
    shares = {
        row: 100 * (max(runs) - min(runs)) / statistics.mean(runs)
        for row, runs in speedups.items()
        if len(runs) > 1
    }
    if not shares:
        return NOT_MEASURED
    worst = max(shares, key=lambda row: shares[row])
    median = statistics.median(shares.values())
    return f"median {median:.1f} %, largest {shares[worst]:.1f} % ({worst}), of {len(shares)}"


def _rows(setting: str, values: dict[str, Runs], failed: set[str]) -> list[tuple[str, ...]]:
    """Return a row for each network that has figures in a setting, or failed there."""
    rows = []
    for network, (kind, _) in NETWORKS.items():
        names = [f"{network}, {setting}, {limit}" for limit in _COLUMNS]
        if not any(one in values[SPEEDUP] or one in failed for one in names):
            continue
        cells = [_cell(values[SPEEDUP].get(one), one in failed) for one in names]
        most = (_most([values[metric].get(one, []) for one in names]) for metric in (FIRST, PEAK))
        rows.append((network, kind, *cells, *most))
    return rows


def _cell(runs: Sequence[float] | None, is_failed: bool) -> str:
    if not runs:
        return "failed" if is_failed else ""
    mean = statistics.mean(runs)
    return f"**{mean:.3f}**" if mean < WORST else f"{mean:.2f}"


def _most(limits: Iterable[Sequence[float]]) -> str:
    """Return the largest of the limits' means, the worst one."""
    means = [statistics.mean(runs) for runs in limits if runs]
    return f"{max(means):.2f}" if means else ""
