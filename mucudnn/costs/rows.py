"""The rows of a cache's file: looked up, added, merged, removed."""

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, Self, TypeVar

from mucudnn.codec import parse_json
from mucudnn.costs.claims import Claims, Patience
from mucudnn.costs.file import CacheError, DamagedError, Database
from mucudnn.costs.schema import KERNEL_KEY, KINDS, STEP_TIME, STEP_USES, Kind, Row, rank
from mucudnn.errors import MucudnnError
from mucudnn.listener import Listener

T = TypeVar("T")

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
        database: Database,
        *,
        claims: Claims | None = None,
        listener: Listener | None = None,
        since: str | None = None,
    ) -> None:
        self.path = path
        self._database = database
        self._claims = claims
        self._listener = listener or Listener()
        self._needed = True
        self._since = since
        self._replacements = 0  # how often another file, or memory, took the place of this one

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
        if self._claims is not None:
            self._claims.close()

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
            patience = Patience(what, self._listener.message, lambda: self.query("PRAGMA data_version"))
            with self._claim(name(item), patience):
                yield item

    def _claim(self, name: str, patience: Patience | None = None) -> AbstractContextManager[bool]:
        return nullcontext(True) if self._claims is None else self._claims.claim(name, patience)

    def rows(self) -> Iterator[Row]:
        """Yield all rows that other caches may take, sorted by kind and machine, as `merge` takes them."""
        for kind in KINDS:
            yield from ((kind, row) for row in self.select(kind))

    def select(self, kind: Kind, where: str = "true", values: Sequence[Any] = ()) -> list[dict[str, Any]]:
        """Return the rows of a kind that match a condition on the columns of the file. Raise CacheError."""
        return self.attempt(lambda connection: select_rows(connection, kind, where, values))

    def put(self, *rows: Row) -> None:
        """Add new rows, all of them or none. Rows of a higher rank stay, unless they do not count."""
        cells = [(*_cells_of(*row), self._since or "") for row in rows]

        def work(connection: sqlite3.Connection) -> None:
            connection.executemany(_ADD_NEW, cells)
            # A damaged file loses rows without an error. The plus sign makes sqlite search as `select` does.
            where = " AND ".join(f"{name} = ?" for name in (*KERNEL_KEY, "kind", "+own_key"))
            for kind, row in rows:
                key = *(row[name] for name in KERNEL_KEY), kind.name, kind.text_of_key(row)
                if not connection.execute(f"SELECT 1 FROM rows WHERE {where}", key).fetchall():
                    raise ValueError("a row that was added cannot be found")

        self.attempt(work, changes=True)

    def merge(self, rows: Iterable[Row]) -> int:
        """Take in rows of another cache, all of them or none, and return how many changed this cache.

        Of two rows with the same key, the one of the higher rank stays. Of two of the same rank, the later
        one stays, or else the row that is already here.
        """
        cells = [_cells_of(*row) for row in rows]

        def work(connection: sqlite3.Connection) -> int:
            before = connection.total_changes
            connection.executemany(_ADD_LATER, cells)
            return connection.total_changes - before

        return self.attempt(work, changes=True)

    def remove(self, column: str, operator: str, value: str) -> int:
        """Delete the rows for which the comparison is true. Return how many."""

        def work(connection: sqlite3.Connection) -> int:
            removed = connection.execute(
                f"DELETE FROM rows WHERE {column} {operator} ? AND kind <> ?", (value, STEP_USES.name)
            ).rowcount
            step = "json_extract(content, '$.step')"
            connection.execute(
                f"DELETE FROM rows WHERE kind = ? AND {step} NOT IN (SELECT {step} FROM rows WHERE kind = ?)",
                (STEP_USES.name, STEP_TIME.name),
            )
            return removed

        return self.attempt(work, changes=True)

    def query(self, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        """Return all rows of a statement. Raise CacheError."""
        bound = tuple(values)
        return self.attempt(lambda connection: connection.execute(sql, bound).fetchall())

    def attempt(self, work: Callable[[sqlite3.Connection], T], *, changes: bool = False) -> T:
        """Return the result of `work`, in one transaction if it changes several rows.

        If the file is damaged, begin a new one. If it fails otherwise, go on in memory unless it is needed.
        Raise CacheError.
        """

        def run() -> T:
            return self._database.change(work) if changes else self._database.run(work)

        try:
            return run()
        except CacheError as error:
            failure = error
        if isinstance(failure, DamagedError) and self._claims is not None:
            with suppress(CacheError):  # such as a folder that cannot be written
                if (aside := self._database.set_aside()) is not None:
                    text = f"{failure.reason}: it is now {aside}, and a new cache begins"
                    self._listener.message(f"Warning: the cache {self.path} {text}")
                self._replacements += 1
                return run()
        if self._needed:
            raise failure
        self._go_on_in_memory(failure)
        return run()

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
        warn_once(self._listener, f"{failure}; what is measured from now on is lost afterwards")
        file, self._database = self._database, Database(self.path)
        self._needed = True
        self._replacements += 1
        with suppress(CacheError):
            self.merge((kind, row) for kind in KINDS for row in file.run(partial(select_rows, kind=kind)))
        file.close()
        if self._claims is not None:
            self._claims.close()
            self._claims = None


def warn_once(listener: Listener, text: str) -> None:
    """Give a warning that this process has not given yet, because every new shape opens the cache again."""
    if text not in _warned:
        _warned.add(text)
        listener.message(f"Warning: {text}")


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
    return kind.name, kind.text_of_key(row), rank(row), *shared, json.dumps(content, allow_nan=False)
