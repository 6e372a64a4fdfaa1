"""What the user sees: results on stdout, messages and progress on stderr."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from mucudnn.costs.cache import Cache
from mucudnn.errors import InterruptedByUserError
from mucudnn.listener import Listener

T = TypeVar("T")
WIDTH = 100  # where there is no terminal to ask; what the widest table needs


class Terminal(Listener):
    """Messages on stderr; progress only where that is a terminal."""

    def message(self, text: str) -> None:
        """One line on stderr."""
        print(text, file=sys.stderr, flush=True)

    def track(self, items: Iterable[T], title: str, total: int | None = None) -> Iterable[T]:
        """A progress bar that goes away when it is done."""
        console = Console(stderr=True)
        if total == 0 or not items or not console.is_terminal:
            yield from items
            return
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Progress(*columns, console=console, transient=True) as progress:
            yield from progress.track(items, total=total, description=title)


@contextmanager
def opened_cache(terminal: Listener, *, needed: bool) -> Iterator[Cache]:
    """The user's cache, as `Cache.of_user`; an interrupt inside says what was kept. Raises MucudnnError."""
    with Cache.of_user(terminal, needed=needed) as cache:
        try:
            yield cache
        except KeyboardInterrupt:
            kept = f"what was measured is kept in {cache.path}" if cache.kept else "nothing was kept"
            raise InterruptedByUserError(f"interrupted: {kept}") from None


def table(gap: int = 2) -> Table:
    """An empty table in the one style that all commands use, `gap` spaces between the columns."""
    return Table(box=box.SIMPLE_HEAD, padding=(0, gap - 1, 0, 0), pad_edge=False, show_edge=False)


def stdout() -> Console:
    """Where results go."""
    console = Console(highlight=False)
    return console if console.is_terminal else Console(highlight=False, width=WIDTH)


def show(*items: Table | str) -> None:
    """Print on stdout; no wider than the terminal, or than 100 columns where there is none."""
    console = stdout()
    for item in items:
        if isinstance(item, Table):
            console.print(item)
        else:
            console.print(item, markup=False, soft_wrap=True)
