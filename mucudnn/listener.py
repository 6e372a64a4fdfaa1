"""Who is told what happens while measuring; the command line shows it on stderr."""

from collections.abc import Iterable, Sequence
from typing import TypeVar

T = TypeVar("T")


class Listener:
    """Says nothing."""

    def message(self, text: str) -> None:
        """One line for the user."""

    def track(self, items: Sequence[T], title: str) -> Iterable[T]:
        """The items, with progress shown as they are taken."""
        return items
