"""The rows of a cache's file, whatever they are about: added, looked up, merged, removed."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, TypeVar

from mucudnn.costs import file as cache_file
from mucudnn.costs.claims import Claims
from mucudnn.costs.file import Database, UnwritableError
from mucudnn.costs.schema import TABLES, Row, Table
from mucudnn.listener import Listener

T = TypeVar("T")


class CacheRows:
    """An open file, or a database in memory. Closed by `with`.

    Where a `listener` is given and the file fails, such as on a full disk, the listener is told once and the
    work goes on in memory.
    """

    def __init__(
        self,
        path: Path,
        database: Database,
        *,
        claims: Claims | None = None,
        listener: Listener | None = None,
    ) -> None:
        self.path = path
        self._database = database
        self._claims = claims
        self._listener = listener

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._database.close()
        if self._claims is not None:
            self._claims.close()

    @property
    def kept(self) -> bool:
        """True if added rows will be there next time."""
        return self._claims is not None

    def claimed(self, items: Iterable[T], name: Callable[[T], str]) -> Iterator[T]:
        """Yield each item while its name is claimed for us.

        First come the items that no other process works at, then the others as these are done. The caller
        must look in the cache again before measuring: another process may have finished the item.
        """
        waiting = list(items)
        for wait in (False, True):
            left = []
            for item in waiting:
                with self._claim(name(item), wait=wait) as ours:
                    if ours:
                        yield item
                    else:
                        left.append(item)
            waiting = left

    def rows(self) -> Iterator[Row]:
        """Yield all rows of the file, sorted, as `merge` takes them."""
        for table in TABLES:
            yield from ((table, row) for row in self.select(table, f"ORDER BY {', '.join(table.key)}"))

    def select(self, table: Table, clauses: str, values: Iterable[Any] = ()) -> Iterator[dict[str, Any]]:
        """Return the exported rows of a table that the clauses of a SELECT leave. Raise UnwritableError."""
        names = ", ".join(f'"{name}"' for name in table.columns)
        for row in self.query(f"SELECT {names} FROM {table.name} {clauses}", values):
            yield dict(zip(table.columns, row, strict=True))

    def merge(self, rows: Iterable[Row]) -> int:
        """Take in rows of another cache, all of them or, where one is an error, none. Returns how many.

        Of two rows about the same the one measured later wins; of equally old ones that which is here.
        """
        with self._counted() as changes:
            for table, row in rows:
                self._upsert(table, row, f"WHERE excluded.measured_at > {table.name}.measured_at")
        return changes[0]

    def remove(self, column: str, operator: str, value: str) -> int:
        """Delete the rows of all tables of which it is true. Returns how many."""
        with self._counted() as changes:
            for table in TABLES:
                self.query(f"DELETE FROM {table.name} WHERE {column} {operator} ?", (value,))
        return changes[0]

    def query(self, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        """Return all rows of a statement. Raise UnwritableError."""
        bound = tuple(values)
        try:
            return self._rows_of(sql, bound)
        except sqlite3.DatabaseError as error:
            failure = cache_file.failure(self.path, error)
            if self._listener is None or isinstance(error, sqlite3.ProgrammingError):
                raise failure from None
        self._go_on_in_memory(failure, self._listener)
        return self._rows_of(sql, bound)

    def _rows_of(self, sql: str, values: tuple[Any, ...]) -> list[Any]:
        with self._database.in_use() as connection:
            return connection.execute(sql, values).fetchall()

    @contextmanager
    def _counted(self) -> Iterator[list[int]]:
        """Open a transaction. The list holds the number of changed rows afterwards."""
        changes: list[int] = []
        with self._database.in_use() as connection:
            self.query("BEGIN IMMEDIATE")
            try:
                before = connection.total_changes
                yield changes
                self.query("COMMIT")
                changes.append(connection.total_changes - before)
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    def _claim(self, name: str, *, wait: bool) -> AbstractContextManager[bool]:
        return nullcontext(True) if self._claims is None else self._claims.claim(name, wait=wait)

    def _go_on_in_memory(self, failure: UnwritableError, listener: Listener) -> None:
        listener.message(f"Warning: {failure}; what is measured from now on is lost afterwards")
        file, self._database = self._database, cache_file.in_memory(self._database)
        file.close()
        if self._claims is not None:
            self._claims.close()
        self._claims = self._listener = None

    def _upsert(self, table: Table, values: dict[str, Any], condition: str) -> None:
        row = {**values, **_told_by(table, values["problem"])}
        names = [f'"{name}"' for name in row]
        self.query(
            f"INSERT INTO {table.name} ({', '.join(names)}) VALUES ({', '.join('?' * len(row))}) "
            f"ON CONFLICT ({', '.join(table.key)}) DO UPDATE SET "
            f"{', '.join(f'{name} = excluded.{name}' for name in names)} {condition}",
            row.values(),
        )


@lru_cache(maxsize=4096)
def _told_by(table: Table, problem: str) -> dict[str, Any]:
    return table.told_by(problem)
