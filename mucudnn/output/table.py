"""Tables as plain text and as HTML, for results that notebooks and terminals show."""

from collections.abc import Sequence
from html import escape
from itertools import chain, zip_longest

from mucudnn.output.printable import printable

Rows = Sequence[Sequence[str]]


def text_table(heads: Sequence[str], rows: Rows, figures: Sequence[bool]) -> str:
    """Return columns under their heads, aligned to the right for figures. Cells may have several lines."""
    cells = (zip_longest(*(cell.split("\n") for cell in row), fillvalue="") for row in rows)
    lines = [heads, *chain.from_iterable(cells)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(heads))]
    aligned = [
        "  ".join(
            cell.rjust(width) if is_figure else cell.ljust(width)
            for cell, width, is_figure in zip(line, widths, figures, strict=True)
        ).rstrip()
        for line in lines
    ]
    return "\n".join([aligned[0], "─" * (sum(widths) + 2 * len(widths) - 2), *aligned[1:]])


def html_table(caption: str, heads: Sequence[str], rows: Rows) -> str:
    """Return an HTML table, in which all cells are text and never markup."""
    lines = [
        "<tr>" + "".join(f"<{tag}>{escape(printable(cell))}</{tag}>" for cell in cells) + "</tr>"
        for tag, cells in (("th", heads), *(("td", row) for row in rows))
    ]
    return f"<table><caption>{escape(printable(caption))}</caption>{''.join(lines)}</table>"
