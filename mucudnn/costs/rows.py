"""The rows of a cache's file: looked up, added, merged, removed."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, TypeVar

from mucudnn.codec import parse_json
from mucudnn.costs.claims import Claims, tries_until_stalled
from mucudnn.costs.file import (
    CacheError,
    DamagedError,
    cache_errors,
    connect_in_memory,
    open_to_read,
    set_aside,
)
from mucudnn.costs.records import Machine
from mucudnn.costs.schema import KERNEL_KEY, KINDS, Kind, Row, rank
from mucudnn.errors import MucudnnError
from mucudnn.forks import close_before_fork, no_fork
from mucudnn.listener import Listener
from mucudnn.problems.kernels import Kernel

T = TypeVar("T")

OF_KERNEL = " AND ".join(f"{column} = ?" for column in KERNEL_KEY)
_COLUMNS = ("engine", *KERNEL_KEY, "measured_at")  # the columns of a row that its content lacks
_ADD = f"""
    INSERT INTO rows (kind, own_key, rank, {", ".join(_COLUMNS)}, content) VALUES ({", ".join("?" * 11)})
    ON CONFLICT ({", ".join(KERNEL_KEY)}, kind, own_key) DO UPDATE SET
    engine = excluded.engine, rank = excluded.rank, measured_at = excluded.measured_at,
    content = excluded.content
    WHERE excluded.rank > rows.rank OR
"""
_ADD_NEW = f"{_ADD} excluded.rank = rows.rank OR rows.measured_at < ?"
_ADD_LATER = f"{_ADD} (excluded.rank = rows.rank AND excluded.measured_at > rows.measured_at)"


_warned: set[str] = set()


class CacheRows:
    """An open file, or a database in memory. Closed by `with`.

    A damaged file is renamed, and a new one begins. If a file that is not `needed` fails for another reason,
    such as a full disk, the work goes on in memory. The listener gets a message in both cases.
    """

    def __init__(
        self,
        path: Path,
        connect: Callable[[Path], sqlite3.Connection] = connect_in_memory,
        *,
        claims: Claims | None = None,
        listener: Listener | None = None,
        since: str = "",
        needed: bool = True,
    ) -> None:
        """Take the function that opens the file."""
        self.path = path
        self._connect = connect
        self._connection: sqlite3.Connection | None = None
        self._claims = claims
        self._listener = listener or Listener()
        self._needed = needed
        self._since = since
        self._replacements = 0  # how often another file, or memory, took the place of this one
        with no_fork:
            close_before_fork(self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._disconnect()
        if self._claims is not None:
            self._claims.close()

    def close(self) -> None:
        """Close the file before a fork, until the file is next used.

        A child would inherit locks in sqlite's memory without the locks in the file system that they stand
        for.
        """
        if self._connect is not connect_in_memory:
            self._disconnect()

    def _disconnect(self) -> None:
        with no_fork:
            if self._connection is not None:
                self._connection.close()
                self._connection = None

    @property
    def kept(self) -> bool:
        """True if added rows are kept in a file."""
        return self._claims is not None

    def claimed(self, items: Iterable[T], name: Callable[[T], str]) -> Iterator[T]:
        """Yield each item while its name is claimed for us.

        Items that no other process works on come first, then the others, each once its process has finished
        it or has stopped making progress. The caller must look in the cache again before measuring, because
        another process may have finished the item.
        """
        busy = []
        for item in items:
            with self._claim(name(item)) as ours:
                if ours:
                    yield item
                else:
                    busy.append(item)
        for item in busy:
            what = f"it is to {name(item)}"
            # The version of the data changes when another process writes to the file.
            tries = tries_until_stalled(
                what, self._listener.message, lambda: self.query("PRAGMA data_version")
            )
            with self._claim(name(item), tries):
                yield item

    def _claim(self, name: str, tries: Iterable[object] = (None,)) -> AbstractContextManager[bool]:
        return nullcontext(True) if self._claims is None else self._claims.claim(name, tries)

    def rows(self) -> Iterator[Row]:
        """Yield all rows that other caches may take, sorted by kind and machine, as `merge` takes them."""
        for kind in KINDS:
            yield from ((kind, row) for row in self.select(kind))

    def select(self, kind: Kind, where: str = "true", values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Return the rows of a kind that match a condition on the columns of the file. Raise CacheError."""
        return self.attempt(lambda connection: select_rows(connection, kind, where, values))

    def put(self, kind: Kind, machine: Machine, kernel: Kernel, *values: Mapping[str, Any]) -> None:
        """Add new rows of a kernel, all of them or none, from the values of the kind's own columns.

        Rows of a higher rank stay, unless they do not count.
        """
        rows = [kind.row(machine, kernel, own) for own in values]
        cells = [(*_cells_of(kind, row), self._since) for row in rows]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany(_ADD_NEW, cells)
            # A damaged file loses rows without an error. The plus sign makes sqlite search as for all rows of
            # a kernel.
            for row in rows:
                key = *(row[name] for name in KERNEL_KEY), json.dumps(kind.own_key_of(row))
                if not select_rows(connection, kind, f"{OF_KERNEL} AND +own_key = ?", key):
                    raise ValueError("a row that was added cannot be found")

        self.attempt(work)

    def merge(self, rows: Iterable[Row]) -> int:
        """Take in rows of another cache, all of them or none, and return how many changed this cache.

        Of two rows with the same key, the one of the higher rank stays. Of two of the same rank, the later
        one stays, or else the row that is already here.
        """
        cells = [_cells_of(*row) for row in rows]
        return self.attempt(lambda connection: connection.executemany(_ADD_LATER, cells).rowcount)

    def remove(self, column: str, operator: str, value: str) -> int:
        """Delete the rows for which the comparison is true, and all counts of uses. Return how many rows."""

        def work(connection: sqlite3.Connection) -> int:
            connection.execute("DELETE FROM step_uses")
            return connection.execute(f"DELETE FROM rows WHERE {column} {operator} ?", (value,)).rowcount

        return self.attempt(work)

    def query(self, sql: str, values: Sequence[Any] = ()) -> list[Any]:
        """Return all rows of a statement. Raise CacheError."""
        return self.attempt(lambda connection: connection.execute(sql, values).fetchall())

    def attempt(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Return the result of `work`, which runs in one transaction and does not read before it writes.

        It may raise ValueError for a row that is wrong. If the file is damaged, begin a new one. If it fails
        otherwise, go on in memory unless it is needed. Raise CacheError.
        """
        try:
            return self._run(work)
        except CacheError as error:
            failure = error
        if isinstance(failure, DamagedError) and self._claims is not None:
            with suppress(CacheError):  # such as a folder that cannot be written
                return self._begin_anew(self._claims, work)
        if self._needed:
            raise failure
        self._go_on_in_memory(failure)
        return self._run(work)

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work`. If another process has the file locked, wait, but only once in this process."""
        with cache_errors(self.path), no_fork:
            if self._connection is None:
                self._connection = self._connect(self.path)
            with self._connection as connection:  # commits, or rolls back
                connection.execute("BEGIN")
                return work(connection)

    def _begin_anew(self, claims: Claims, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` on a new file. Rename the damaged one first, unless another process has replaced it."""
        tries = tries_until_stalled("it replaces the damaged cache", self._listener.message)
        with cache_errors(self.path), claims.claim("the file itself", tries):
            self._replacements += 1
            self._disconnect()
            try:
                return self._run(work)
            except DamagedError as error:
                self._disconnect()
                text = f"{error.reason}: it is now {set_aside(self.path)}, and a new cache begins"
        self.warn(f"the cache {self.path} {text}")
        return self._run(work)

    def consistently(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which reads the cache several times.

        Do the work again if the file was replaced meanwhile, because the new one lacks rows that the work
        had already found.
        """
        before = self._replacements
        try:
            result = work()
        except MucudnnError:
            if self._replacements == before:
                raise
        else:
            if self._replacements == before:
                return result
        return work()

    def _go_on_in_memory(self, failure: CacheError) -> None:
        self._warn_lost(failure)
        rows = self._rows_of_file()
        self.__exit__()
        self._connect, self._claims, self._needed = connect_in_memory, None, True
        self._replacements += 1
        self.merge(rows)

    def _rows_of_file(self) -> list[Row]:
        """Return the rows of the file, or none if it cannot be read."""
        with suppress(MucudnnError), CacheRows(self.path, open_to_read) as file:
            return list(file.rows())
        return []

    def warn(self, text: str) -> None:
        """Give a warning that this process has not given yet: every new shape opens the cache again."""
        if text not in _warned:
            _warned.add(text)
            self._listener.message(f"Warning: {text}")

    def _warn_lost(self, failure: CacheError) -> None:
        self.warn(f"{failure}; what is measured from now on is lost afterwards")


def select_rows(
    connection: sqlite3.Connection, kind: Kind, where: str = "true", values: Sequence[Any] = ()
) -> list[dict[str, Any]]:
    """Return the rows of a kind that match a condition. Raise ValueError for a damaged row."""
    rows = connection.execute(
        f"SELECT {', '.join(_COLUMNS)}, content FROM rows WHERE kind = ? AND {where} "
        f"ORDER BY {', '.join(KERNEL_KEY)}, own_key",
        (kind.name, *values),
    ).fetchall()
    return [_read(kind, *row).copy() for row in rows]


@lru_cache(maxsize=4096, typed=True)  # a decision reads the rows of its kernel again and again
def _read(kind: Kind, *cells: Any) -> dict[str, Any]:
    *shared, content = cells
    values = parse_json(str(content))
    if not isinstance(values, dict):
        raise ValueError("the content of a row is not a JSON object")
    return kind.checked(values | dict(zip(_COLUMNS, shared, strict=True)))


def _cells_of(kind: Kind, row: Mapping[str, Any]) -> tuple[Any, ...]:
    """Return the cells of a row, as the statements that add it take them."""
    content = {name: value for name, value in row.items() if name not in _COLUMNS}
    shared = (row[name] for name in _COLUMNS)
    return (
        kind.name,
        json.dumps(kind.own_key_of(row)),
        rank(row),
        *shared,
        json.dumps(content, allow_nan=False),
    )
