"""The rows of a cache's file: added, looked up, merged, removed."""

import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext, suppress
from functools import lru_cache
from pathlib import Path
from typing import Any, Self, TypeVar

from mucudnn.costs import file as cache_file
from mucudnn.costs.claims import Claims, Patience
from mucudnn.costs.exchange import checked_cells
from mucudnn.costs.file import STEP_USES, DamagedError, Database, UnwritableError
from mucudnn.costs.records import RACED, Machine, StepUses
from mucudnn.costs.salvage import copy_in_memory, replace_damaged
from mucudnn.costs.schema import (
    KERNEL_KEY,
    MEASUREMENT,
    MORE_UNDISTURBED,
    NOT_UNLIKELY,
    STEP_TIME,
    TABLES,
    UNDISTURBED,
    Row,
    Table,
)
from mucudnn.errors import raised_here
from mucudnn.forks import no_fork
from mucudnn.listener import Listener
from mucudnn.problems.kernels import Kernel

T = TypeVar("T")
_STEP_KEY = (*KERNEL_KEY, "step")
_NAMES = ", ".join(f'"{column}"' for column in _STEP_KEY)
_SAME_STEP = " AND ".join(f'"{column}" = ?' for column in _STEP_KEY)
_COUNT_USES = (
    f"INSERT INTO {STEP_USES} ({_NAMES}, uses, checks) VALUES ({', '.join('?' * len(_STEP_KEY))}, ?, ?) "
    f"ON CONFLICT ({_NAMES}) DO UPDATE SET"
)
_warned: set[str] = set()


# A decision reads the rows of its kernel again and again.
_checked = lru_cache(maxsize=4096, typed=True)(checked_cells)


def warn_once(listener: Listener, text: str) -> None:
    """Give a warning that this process has not given yet, because every new shape opens the cache again."""
    if text not in _warned:
        _warned.add(text)
        listener.message(f"Warning: {text}")


class CacheRows:
    """An open file, or a database in memory. Closed by `with`.

    A damaged file is set aside, and the work goes on with the rows that can be read. If a file that is not
    `needed` fails for another reason, such as a full disk, the work goes on in memory. The listener gets a
    message in both cases.
    """

    def __init__(
        self,
        path: Path,
        database: Database,
        *,
        claims: Claims | None = None,
        listener: Listener | None = None,
        needed: bool = True,
    ) -> None:
        self.path = path
        self._database = database
        self._claims = claims
        self._listener = listener or Listener()
        self._needed = needed
        self._in_transaction = False

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

    def rows(self) -> Iterator[Row]:
        """Yield all rows of the file, sorted, as `merge` takes them."""
        for table in TABLES:
            yield from ((table, row) for row in self.select(table, f"ORDER BY {', '.join(table.key)}"))

    def select(self, table: Table, clauses: str, values: Iterable[Any] = ()) -> list[dict[str, Any]]:
        """Return the exported rows of a table that match the clauses of a SELECT. Raise UnwritableError."""
        sql, bound = f"SELECT {table.selection} FROM {table.name} {clauses}", tuple(values)
        return self.attempt(lambda: [dict(_checked(table, *row)) for row in self._rows_of(sql, bound)])

    def merge(self, rows: Iterable[Row]) -> int:
        """Take in rows of another cache, all of them or none, and return how many changed this cache.

        Of two rows with the same key, the later one wins, or else the row that is already here. A time from a
        race does not replace a time from many runs. An undisturbed time replaces a disturbed one, even a
        later one, and never the reverse. A row that an algorithm is unlikely replaces no measurement.
        """
        taken = list(rows)

        def work() -> None:
            for table, row in taken:
                later = f"excluded.measured_at > {table.name}.measured_at"
                if table is MEASUREMENT:
                    if RACED in (row["notes"] or "").split():
                        later += f" AND ' ' || {table.name}.notes || ' ' LIKE '% {RACED} %'"
                    later = f"{UNDISTURBED} AND ({later} OR {MORE_UNDISTURBED}) AND {NOT_UNLIKELY}"
                self.query(*table.upsert(row, f"WHERE {later}"))

        return self.attempt(lambda: self._count_changes(work))

    def remove(self, column: str, operator: str, value: str) -> int:
        """Delete the rows of all tables for which the comparison is true. Return how many."""

        def work() -> None:
            for table in TABLES:
                self.query(f"DELETE FROM {table.name} WHERE {column} {operator} ?", (value,))

        removed = self.attempt(lambda: self._count_changes(work))
        self.query(f"DELETE FROM {STEP_USES} WHERE step NOT IN (SELECT step FROM {STEP_TIME.name})")
        return removed

    def add_uses(self, machine: Machine, kernel: Kernel, step: str, count: int) -> StepUses:
        """Count uses of a step's times. Return all of them so far.

        The counts are about this file, so exported and merged rows lack them.
        """
        key = _step_key(machine, kernel, step)
        self.query(f"{_COUNT_USES} uses = uses + excluded.uses", (*key, count, 0))
        # A damaged row may hold a text or a negative number.
        counts = ", ".join(f"max(CAST({name} AS INTEGER), 0)" for name in StepUses._fields)
        rows = self.query(f"SELECT {counts} FROM {STEP_USES} WHERE {_SAME_STEP}", key)
        return StepUses(*rows[0]) if rows else StepUses(count, 0)

    def reset_uses(self, machine: Machine, kernel: Kernel, step: str, checks: int) -> None:
        """Reset the uses of a step's times to 0, and keep how many checks have confirmed the times."""
        key = _step_key(machine, kernel, step)
        self.query(f"{_COUNT_USES} uses = excluded.uses, checks = excluded.checks", (*key, 0, checks))

    def forget_step_times(self, machine: Machine, kernel: Kernel, step: str) -> None:
        """Delete the times of a step, which a check has contradicted."""
        for name in (STEP_TIME.name, STEP_USES):
            self.query(f"DELETE FROM {name} WHERE {_SAME_STEP}", _step_key(machine, kernel, step))

    def query(self, sql: str, values: Iterable[Any] = ()) -> list[Any]:
        """Return all rows of a statement. Raise UnwritableError."""
        bound = tuple(values)
        return self.attempt(lambda: self._rows_of(sql, bound))

    def attempt(self, work: Callable[[], T]) -> T:
        """Return the result of `work`, which raises sqlite3.DatabaseError, or ValueError for a damaged row.

        If another process has the file locked, wait. If the file fails, repeat the work with a usable file,
        else in memory. Raise UnwritableError.
        """
        try:
            return work() if self._in_transaction else cache_file.when_unlocked(self.path, work)
        except raised_here(sqlite3.DatabaseError, ValueError, UnwritableError) as error:
            failure = self._failure_of(error)
            if self._in_transaction or isinstance(error, sqlite3.ProgrammingError):
                raise failure from None
        if isinstance(failure, DamagedError) and self._replace_file():
            try:
                return work()
            except raised_here(sqlite3.DatabaseError, ValueError, UnwritableError) as error:
                failure = self._failure_of(error)
        if self._needed:
            raise failure
        self._go_on_in_memory(failure)
        return work()

    def _failure_of(self, error: Exception) -> UnwritableError:
        if isinstance(error, UnwritableError):
            return error
        if isinstance(error, sqlite3.DatabaseError):
            return cache_file.failure(self.path, error)
        return DamagedError(f"the cache {self.path} is damaged: a row is wrong: {error}")

    def _replace_file(self) -> bool:
        """Replace a damaged file, and return whether the path has a usable file now."""
        if self._claims is None:
            return False
        self._database.close()
        try:
            warning = replace_damaged(self.path)
        except raised_here(OSError, sqlite3.Error, UnwritableError):  # such as a read-only folder
            return False
        if warning is not None:
            self._listener.message(warning)
        return True

    def _rows_of(self, sql: str, values: tuple[Any, ...]) -> list[Any]:
        with no_fork:
            return self._database.connection().execute(sql, values).fetchall()

    def _count_changes(self, work: Callable[[], None]) -> int:
        """Do the work in one transaction. Return the number of changed rows."""
        with no_fork:
            connection = self._database.connection()
            try:
                connection.execute("BEGIN IMMEDIATE")
                self._in_transaction = True
                before = connection.total_changes
                work()
                connection.execute("COMMIT")
                return connection.total_changes - before
            finally:
                self._in_transaction = False
                if connection.in_transaction:
                    with suppress(sqlite3.Error):
                        connection.rollback()

    def _claim(self, name: str, patience: Patience | None = None) -> AbstractContextManager[bool]:
        return nullcontext(True) if self._claims is None else self._claims.claim(name, patience)

    def _go_on_in_memory(self, failure: UnwritableError) -> None:
        lost = "what is measured from now on is lost afterwards" if self.kept else "what can be read is used"
        warn_once(self._listener, f"{failure}; {lost}")
        file, self._database = self._database, copy_in_memory(self._database)
        file.close()
        if self._claims is not None:
            self._claims.close()
        self._claims, self._needed = None, True


def _step_key(machine: Machine, kernel: Kernel, step: str) -> tuple[Any, ...]:
    return (*machine.identity, STEP_TIME.problem_text(kernel.problem), kernel.pass_, step)
