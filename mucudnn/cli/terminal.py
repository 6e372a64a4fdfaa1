"""The output to the user: results on stdout, messages and progress on stderr."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from mucudnn.costs.cache import Cache
from mucudnn.errors import InterruptedByUserError
from mucudnn.listener import Listener, ProgressBar
from mucudnn.output import printable

WIDTH = 100  # columns of the widest table, and of output that goes to no terminal


class Terminal(ProgressBar):
    """A listener that prints messages on stderr, and shows progress there if that is a terminal."""

    def message(self, text: str) -> None:
        """Print one line on stderr."""
        print(printable(text), file=sys.stderr, flush=True)


@contextmanager
def opened_cache(terminal: Listener, *, needed: bool) -> Iterator[Cache]:
    """Open the user's cache with `Cache.of_user`.

    An interrupt inside becomes an InterruptedByUserError that tells where the measurements are kept.
    Raises MucudnnError.
    """
    with Cache.of_user(terminal, needed=needed) as cache:
        try:
            yield cache
        except KeyboardInterrupt:
            kept = f"what was measured is kept in {cache.path}" if cache.kept else "nothing was kept"
            raise InterruptedByUserError(f"interrupted: {kept}") from None


class _PlainTable(Table):
    """A table of plain text: rich would obey square brackets in it, and the terminal escape sequences."""

    def add_column(self, header: Any = "", *rest: Any, **options: Any) -> None:
        """Add a column under a plain header."""
        super().add_column(_plain(header), *rest, **options)

    def add_row(self, *cells: Any, **options: Any) -> None:
        """Add a row of plain cells."""
        super().add_row(*map(_plain, cells), **options)


def _plain(cell: Any) -> Any:
    return Text(printable(cell)) if isinstance(cell, str) else cell


def table(gap: int = 2) -> Table:
    """Return an empty table in the style of all commands, with `gap` spaces between the columns."""
    return _PlainTable(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), pad_edge=False, show_edge=False)


def stdout() -> Console:
    """Return the console for results, WIDTH columns wide if stdout is no terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def show_json(found: object) -> None:
    """Print an object as JSON on stdout."""
    print(json.dumps(found, indent=1))


def show(*items: Table | str) -> None:
    """Print tables and lines on stdout; a table is no wider than the terminal, or than WIDTH without one."""
    console = stdout()
    for item in items:
        if isinstance(item, Table):
            console.print(item)
        else:
            console.print(printable(item), markup=False, soft_wrap=True)
