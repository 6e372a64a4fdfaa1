"""Tables as plain text and as HTML, for results that notebooks and terminals show."""

from collections.abc import Iterable, Sequence
from html import escape
from itertools import chain, zip_longest
from typing import ClassVar

from mucudnn.output.printable import printable

Rows = Iterable[Sequence[str]]


class Tabular:
    """A result that prints as a table with sentences below it, and that notebooks show as HTML."""

    _heads: ClassVar[Sequence[str]]
    _figures: ClassVar[Sequence[bool]]  # True for columns that are aligned to the right

    def _rows(self) -> Rows:
        raise NotImplementedError

    def _sentences(self) -> Iterable[str]:
        raise NotImplementedError

    def __str__(self) -> str:
        return "\n".join([text_table(self._heads, self._rows(), self._figures), "", *self._sentences()])

    def _repr_html_(self) -> str:
        """Return the table for notebooks."""
        return html_table("\n".join(self._sentences()), self._heads, self._rows())


def text_table(heads: Sequence[str], rows: Rows, figures: Sequence[object]) -> str:
    """Return columns under their heads, aligned to the right for figures. Cells may have several lines."""
    cells = (zip_longest(*(printable(cell).split("\n") for cell in row), fillvalue="") for row in rows)
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
        "<tr>" + "".join(f"<{tag}>{_html(cell)}</{tag}>" for cell in cells) + "</tr>"
        for tag, cells in (("th", heads), *(("td", row) for row in rows))
    ]
    return f"<table><caption>{_html(caption)}</caption>{''.join(lines)}</table>"


def _html(text: str) -> str:
    return escape(printable(text)).replace("\n", "<br>")
