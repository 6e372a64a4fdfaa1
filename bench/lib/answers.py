"""Answers of records to the questions of the tables, and the tables as Markdown."""

from __future__ import annotations

import re
import statistics
from collections.abc import Callable, Iterable

from bench.lib.record import Record
from bench.lib.roofline import WORST, explanations

NOT_MEASURED = "not measured"
Records = list[Record]


def _values(records: Records, bench: str, metric: str = "", case: str = "") -> list[float]:
    """Return the values of a bench's records whose metric and case contain these texts."""
    found = [r for r in records if r.bench == bench and metric in r.metric and case in r.case]
    return [record.value for record in found if record.value is not None]


def figure(
    bench: str, metric: str = "", case: str = "", unit: str = "", *, form: str = "range", digits: int = 3
) -> Callable[[Records], str]:
    """Make a function that shows a value, or the least and the most of several.

    With the form `mean` the geometric mean comes first, and the number of values last.
    """

    def answer(records: Records) -> str:
        values = _values(records, bench, metric, case)
        if not values:
            return ""
        least, most = (short(value, digits) for value in (min(values), max(values)))
        text = least if least == most else f"{least} to {most}"
        if form == "mean":
            text = f"{short(statistics.geometric_mean(values))}, {text}, of {len(values)}"
        return f"{text} {unit}".strip()

    return answer


def by_case(
    bench: str, metric: str, unit: str, cases: str = ".*", *, digits: int = 3
) -> Callable[[Records], str]:
    """Make a function that shows each case that the pattern `cases` matches, with its value."""

    def answer(records: Records) -> str:
        found = [
            r for r in records if r.bench == bench and metric in r.metric and re.fullmatch(cases, r.case)
        ]
        wanted = {r.case: r.value for r in found if r.value is not None}
        return "; ".join(f"{case}: {short(value, digits)} {unit}".strip() for case, value in wanted.items())

    return answer


def recognised(bench: str) -> Callable[[Records], str]:
    """Make a function that shows which share of a program's convolution calls the drop-in recognises.

    It shows the share of all networks, that of the network with the lowest, and why calls are not recognised.
    """

    def answer(records: Records) -> str:
        found = [record for record in records if record.bench == bench and record.value is not None]
        if not found:
            return ""
        total, least = found[-1], min(found[:-1], key=lambda record: record.value or 0)
        reasons = {name: count for name, count in total.details.items() if name != "calls"}
        rest = "".join(f"; {count} calls: {name}" for name, count in reasons.items())
        shares = [short(record.value or 0) for record in (total, least)]
        name, network = total.case.partition(": ")[0], least.case.partition(": ")[2]
        return (
            f"{name}: {shares[0]} % of {total.details['calls']} calls; least, {network}: {shares[1]} %{rest}"
        )

    return answer


def explained(records: Records) -> str:
    """Return why kernels are slower than stock PyTorch by more than the factor WORST, one after the other."""
    found = "; ".join(explanations(records))
    return found or ("" if above("kernels", WORST)(records) != "none" else "no row is above")


def above(bench: str, bound: float) -> Callable[[Records], str]:
    """Make a function that shows each case of a bench whose value is above a bound, the largest first."""

    def answer(records: Records) -> str:
        found = [(r.value, r.case) for r in records if r.bench == bench and r.value is not None]
        above = [f"{case}: {short(value)}" for value, case in sorted(found, reverse=True) if value > bound]
        return "; ".join(above) or ("none" if found else "")

    return answer


def short(value: float, digits: int = 3) -> str:
    """Return a value with three digits, and one from 1000 on without a fraction."""
    return f"{value:.0f}" if value >= 1000 else f"{value:.{digits}g}"


def cliffs(records: Records) -> str:
    """Return the mini-batch sizes at which the time of each kernel jumps."""
    found = [r for r in records if r.bench == "sweep" and "cliffs" in r.metric]
    return "; ".join(f"{r.case}: {r.details['at'] or 'none'}" for r in found)


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    titles = list(head)
    return [_row(titles), "|" + "---|" * len(titles), *map(_row, rows)]


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(str(cell).replace("|", "/") for cell in cells) + " |"
