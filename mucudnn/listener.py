"""The receiver of messages and progress while mucudnn measures. The command line prints them on stderr."""

from collections.abc import Iterable
from typing import TypeVar

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
