"""Who is told what happens while measuring; the command line shows it on stderr."""

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")


class Listener:
    """Says nothing."""

    def message(self, text: str) -> None:
        """One line for the user."""

    def track(self, items: Iterable[T], title: str, total: int | None = None) -> Iterable[T]:
        """The items, with progress shown as they are taken; `total` where their number cannot be seen."""
        return items
