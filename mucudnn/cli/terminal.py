"""The output to the user: results on stdout, messages and progress on stderr."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mucudnn.costs.cache import Cache
from mucudnn.errors import InterruptedByUserError
from mucudnn.listener import Listener, ProgressBar
from mucudnn.output.printable import printable
from mucudnn.output.streams import fill, fill_lines, results

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_SCHEMA = 1  # the version of all JSON output
WIDTH = 100  # columns of the widest table, and of output that goes to no terminal


class Terminal(ProgressBar):
    """A listener that prints messages on stderr, and shows progress there if that is a terminal."""

    def message(self, text: str) -> None:
        """Print a text on stderr: one line, unless a terminal is narrower."""
        # One write, because after an interrupt without the newline another process would continue this line.
        print(f"{fill(printable(text), sys.stderr)}\n", end="", file=sys.stderr, flush=True)


@contextmanager
def opened_cache(terminal: Listener, *, needed: bool) -> Iterator[Cache]:
    """Open the user's cache with `Cache.of_user`.

    An interrupt inside becomes an InterruptedByUserError that says where the measurements are kept.
    Raises MucudnnError.
    """
    with Cache.of_user(terminal, needed=needed) as cache:
        try:
            yield cache
        except KeyboardInterrupt:
            kept = f"what was measured is kept in {cache.path}" if cache.kept else "nothing was kept"
            raise InterruptedByUserError(f"interrupted: {kept}") from None


# rich takes a tenth of a second to import, which JSON output need not wait for.
def table(*columns: str, gap: int = 2) -> "Table":
    """Return an empty table in the style of all commands, with `gap` spaces between the columns.

    A column whose heading begins with `>` holds figures, and is aligned to the right.
    """
    from mucudnn.cli.plain_table import PlainTable

    rows = PlainTable(gap)
    for column in columns:
        if column.startswith(">"):
            rows.add_column(column[1:], justify="right", no_wrap=True)
        else:
            rows.add_column(column, overflow="fold")
    return rows


def stdout() -> "Console":
    """Return the console for results, WIDTH columns wide if stdout is not a terminal."""
    from rich.console import Console

    console = Console(highlight=False, file=results())
    return console if console.is_terminal else Console(highlight=False, file=results(), width=WIDTH)


def prose(text: str, indent: str = "") -> str:
    """Return a sentence in lines that fit the terminal, which would break words; one line elsewhere."""
    console = stdout()
    if not console.is_terminal:
        return f"{indent}{text}"
    return fill_lines(text, console.width, indent)


def show_json(content: dict[str, Any]) -> None:
    """Print an object as JSON on stdout, after the version of the schema."""
    print(json.dumps({"schema": _SCHEMA, **content}, indent=1), file=results())


def show(*items: "Table | str") -> None:
    """Print tables and lines on stdout, with tables at most as wide as the terminal, or WIDTH without one."""
    console = stdout()
    for item in items:
        if isinstance(item, str):
            console.print(printable(item), markup=False, soft_wrap=True)
        else:
            console.print(item)
