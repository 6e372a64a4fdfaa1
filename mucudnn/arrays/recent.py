"""A dictionary of bounded size that forgets its least recently used entries."""

from collections.abc import Hashable
from typing import TypeVar, cast

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Recent(dict[Key, Value | None]):
    """At most twice `most` values by key; `recent[key]` is None for a key without a value.

    The dictionary itself has the newer entries, and finds them as fast as any other dictionary. When it is
    full, they become the older entries, and the previous older entries are forgotten. An older entry that is
    used again becomes a newer one.

    Threads need no lock, because at worst a race forgets an entry too early.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most
        self._older: dict[Key, Value | None] = {}

    def __missing__(self, key: Key) -> Value | None:
        value = self._older.get(key)
        if value is not None:
            self[key] = value
        return value

    def __setitem__(self, key: Key, value: Value | None) -> None:
        if len(self) >= self._most and key not in self:
            self._older = dict(self)
            self.clear()
        super().__setitem__(key, value)

    def everything(self) -> dict[Key, Value]:
        """Return a copy with all entries, the older ones first."""
        return cast(dict[Key, Value], self._older | dict(self))
