"""Tables of plain text for the terminal."""

from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from mucudnn.output.printable import printable


class PlainTable(Table):
    """A table of plain text, in which rich ignores square brackets and the terminal escape sequences."""

    def __init__(self, gap: int) -> None:
        super().__init__(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), pad_edge=False, show_edge=False)

    def add_column(self, header: Any = "", *rest: Any, **options: Any) -> None:
        """Add a column under a plain header."""
        super().add_column(_plain(header), *rest, **options)

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row of plain cells."""
        super().add_row(*map(_plain, cells), **options)


def _plain(cell: Any) -> Any:
    return Text(printable(cell)) if isinstance(cell, str) else cell
