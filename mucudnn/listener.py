"""The receivers of messages and progress while mucudnn measures."""

from collections.abc import Iterable
from importlib.util import find_spec
from typing import TypeVar

from mucudnn.errors import raised_here
from mucudnn.forks import load

T = TypeVar("T")


class Listener:
    """A listener that ignores messages and progress."""

    def message(self, text: str) -> None:
        """Take one line for the user."""

    def track(self, items: Iterable[T], title: str, total: int | None = None) -> Iterable[T]:
        """Return the items; a subclass shows progress as the caller takes them.

        `total` is the number of items if `items` has no length.
        """
        return items


class ProgressBar(Listener):
    """A listener that shows progress on stderr if that is a terminal, and in notebooks."""

    def track(self, items: Iterable[T], title: str, total: int | None = None) -> Iterable[T]:
        """Yield the items, with a progress bar that disappears at the end."""
        if total == 0 or not items:
            yield from items
            return
        # Importing rich takes a tenth of a second, so calls that measure nothing do not.
        try:
            rich, console = load("rich.progress"), load("rich.console").Console(stderr=True)
            can_show = find_spec("ipywidgets") is not None if console.is_jupyter else console.is_terminal
        except raised_here(OSError, RuntimeError):  # the process can open no further file, or thread
            can_show = False
        if not can_show:
            yield from items
            return
        columns = (
            rich.TextColumn("{task.description}"), rich.BarColumn(), rich.MofNCompleteColumn(),
            rich.TimeRemainingColumn(),
        )  # fmt: skip
        # No redirection, because the streams belong to the program.
        with rich.Progress(
            *columns, console=console, transient=True, redirect_stdout=False, redirect_stderr=False
        ) as progress:
            yield from progress.track(items, total=total, description=title)
