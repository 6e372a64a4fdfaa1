"""Functions that show records' values in a cell, and tables as Markdown."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable

from bench.lib.record import Record

NOT_MEASURED = "not measured"
Records = list[Record]
Answer = Callable[[Records], str]


def _select(records: Records, bench: str, metric: str = "", case: str = "") -> list[tuple[str, float]]:
    """Return case and value of a bench's records whose metric contains a text and whose case a pattern."""
    return [
        (r.case, r.value)
        for r in records
        if r.bench == bench and metric in r.metric and re.search(case, r.case) and r.value is not None
    ]


def figure(
    bench: str, metric: str = "", case: str = "", unit: str = "", *, form: str = "range", digits: int = 3
) -> Answer:
    """Make a function that shows the values of some records; `case` is a pattern.

    The form `range` shows the least and the most. With `mean` the geometric mean comes first, and the number
    of values last. `cases` shows each case with its value.
    """

    def answer(records: Records) -> str:
        selected = _select(records, bench, metric, case)
        if not selected:
            return ""
        if form == "cases":
            texts = (f"{name}: {short(value, digits)} {unit}" for name, value in selected)
            return "; ".join(map(str.strip, texts))
        values = [value for _, value in selected]
        least, most = (short(value, digits) for value in (min(values), max(values)))
        text = least if least == most else f"{least} to {most}"
        if form == "mean":
            text = f"{short(statistics.geometric_mean(values))}, {text}, of {len(values)}"
        return f"{text} {unit}".strip()

    return answer


def recognised(bench: str) -> Answer:
    """Make a function that shows the share of a program's convolution calls that the drop-in recognises.

    It shows the share of all networks, that of the network with the lowest, and why calls are not recognised.
    """

    def answer(records: Records) -> str:
        measured = [record for record in records if record.bench == bench and record.value is not None]
        if not measured:
            return ""
        total, least = measured[-1], min(measured[:-1], key=lambda record: record.value or 0)
        reasons = {name: count for name, count in total.details.items() if name != "calls"}
        rest = "".join(f"; {count} calls: {name}" for name, count in reasons.items())
        shares = [short(record.value or 0) for record in (total, least)]
        name, network = total.case.partition(": ")[0], least.case.partition(": ")[2]
        return (
            f"{name}: {shares[0]} % of {total.details['calls']} calls; least, {network}: {shares[1]} %{rest}"
        )

    return answer


def above(bench: str, bound: float) -> Answer:
    """Make a function that shows the cases of a bench whose value is above a bound, the largest first."""

    def answer(records: Records) -> str:
        values = sorted(((value, case) for case, value in _select(records, bench)), reverse=True)
        texts = [f"{case}: {short(value)}" for value, case in values if value > bound]
        return "; ".join(texts) or ("none" if values else "")

    return answer


def short(value: float, digits: int = 3) -> str:
    """Return a value with some digits; a value from 1000 on without a fraction."""
    return f"{value:.0f}" if abs(value) >= 1000 else f"{value:.{digits}g}"


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    titles = list(head)
    return [_row(titles), "|" + "---|" * len(titles), *map(_row, rows)]


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"
