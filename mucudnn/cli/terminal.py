"""The output to the user: results on stdout, messages and progress on stderr."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich import box
from rich.console import Console
from rich.table import Table

from mucudnn.costs.cache import Cache
from mucudnn.errors import InterruptedByUserError
from mucudnn.listener import Listener, ProgressBar

WIDTH = 100  # columns of the widest table, and of output that goes to no terminal


class Terminal(ProgressBar):
    """A listener that prints messages on stderr, and shows progress there if that is a terminal."""

    def message(self, text: str) -> None:
        """Print one line on stderr."""
        print(text, file=sys.stderr, flush=True)


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


def table(gap: int = 2) -> Table:
    """Return an empty table in the style of all commands, with `gap` spaces between the columns."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), pad_edge=False, show_edge=False)


def stdout() -> Console:
    """Return the console for results, WIDTH columns wide if stdout is no terminal."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def show(*items: Table | str) -> None:
    """Print tables and lines on stdout; a table is no wider than the terminal, or than WIDTH without one."""
    console = stdout()
    for item in items:
        if isinstance(item, Table):
            console.print(item)
        else:
            console.print(item, markup=False, soft_wrap=True)
