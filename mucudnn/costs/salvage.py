"""The rescue of a damaged cache: readable rows are copied to a new file, and the old file is kept."""

import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

from mucudnn.costs import file as cache_file
from mucudnn.costs.claims import Claims
from mucudnn.costs.exchange import checked_cells
from mucudnn.costs.file import DamagedError, Database, LockedError, when_unlocked
from mucudnn.costs.schema import TABLES, Table
from mucudnn.errors import raised_here
from mucudnn.forks import no_fork

_SINGLE_STEPS = 1000  # unreadable rows that are passed one by one, before the steps double


def open_file(path: Path) -> tuple[Database, Claims, str | None]:
    """Open a cache for reading and writing as `file.open_file` does; replace it if it is damaged.

    The third value is a message about a file that was set aside. Raise what `file.open_file` raises.
    """
    warning = None
    try:
        database, claims = cache_file.open_file(path)
    except DamagedError as error:
        try:
            warning = replace_damaged(path)
        except raised_here(OSError, sqlite3.Error):  # such as a folder that cannot be written
            raise error from None
        database, claims = cache_file.open_file(path)
    return database, claims, warning


def replace_damaged(path: Path) -> str | None:
    """Set a damaged cache aside, and make a new one of the rows that can be read.

    Return the warning about it, or None if the file is not damaged because another process has replaced it.
    Raise OSError, sqlite3.Error, LockedError.
    """
    return when_unlocked(path, partial(_replace_damaged, path))


def _replace_damaged(path: Path) -> str | None:
    with closing(Claims(path)) as claims, claims.claim("the file itself") as ours, no_fork:
        if not ours:
            raise LockedError(path)
        if not is_damaged(path):
            return None
        fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        try:
            # The name is new, so that it cannot be a link to another file.
            os.close(os.open(fresh, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, path.stat().st_mode & 0o777))
            aside, kept = _replace(path, fresh)
        finally:
            fresh.unlink(missing_ok=True)
    rows = f"{kept} row{'s' * (kept != 1)} of it could be read and {'were' if kept != 1 else 'was'} kept"
    return f"Warning: the cache {path} was damaged: it is now {aside}, and {rows}"


def _replace(path: Path, fresh: Path) -> tuple[Path, int]:
    """Return the damaged file's new path, and the number of rows in the new file."""
    with closing(cache_file.connect(fresh)) as new:
        cache_file.make_tables(new)
        kept = _copy_readable(path, new)
    aside = cache_file.free_name(path, "damaged")
    # The log moves first, because sqlite would delete it if the file is missing.
    for suffix in ("-wal", ""):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
    Path(f"{path}-shm").unlink(missing_ok=True)
    fresh.rename(path)
    return aside, kept


def is_damaged(path: Path) -> bool:
    """Return whether sqlite reports damage or a row is wrong. Raise sqlite3.OperationalError."""
    try:
        with closing(cache_file.connect(path, "?mode=rw")) as connection:
            cache_file.check_tables(connection)
            if connection.execute("PRAGMA integrity_check(1)").fetchall() != [("ok",)]:
                return True
            for table in TABLES:
                for values in connection.execute(f"SELECT {table.selection} FROM {table.name}"):
                    checked_cells(table, *values)
    except raised_here(sqlite3.DatabaseError, ValueError) as error:
        if isinstance(error, sqlite3.DatabaseError) and not cache_file.is_damage(error):
            raise
        return True
    return False


def copy_in_memory(source: Database) -> Database:
    """Return a database in memory with the rows of `source` that can be read."""
    copy = cache_file.in_memory()
    with suppress(sqlite3.Error, UnicodeDecodeError), no_fork:
        _copy_rows(source.connection(), copy.connection())
    return copy


def _copy_readable(path: Path, new: sqlite3.Connection) -> int:
    with suppress(sqlite3.Error, UnicodeDecodeError), closing(cache_file.connect(path, "?mode=rw")) as old:
        old.execute("PRAGMA writable_schema = ON")  # lets sqlite read a truncated file
        return _copy_rows(old, new)
    return 0


def _copy_rows(old: sqlite3.Connection, new: sqlite3.Connection) -> int:
    """Copy the rows that can be read and are valid. Return how many."""
    before = new.total_changes
    new.execute("BEGIN")
    for table in TABLES:
        for values in _readable(old, table):
            try:
                row = checked_cells(table, *values)
            except raised_here(ValueError):
                continue
            new.execute(*table.upsert(row))
    new.execute("COMMIT")
    return new.total_changes - before


def _readable(connection: sqlite3.Connection, table: Table) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a table that sqlite can read, in the order of the file."""
    where = "NOT INDEXED WHERE rowid >= ? ORDER BY rowid LIMIT ?"
    sql = f"SELECT rowid, {table.selection} FROM {table.name} {where}"
    following, failures, no_limit = 1, 0, -1
    while following < 2**63:
        try:
            for row, *values in connection.execute(sql, (following, no_limit)):
                following = max(following, row + 1)
                yield tuple(values)
            return
        except raised_here(sqlite3.Error, UnicodeDecodeError, MemoryError):
            pass  # Python reads one row ahead, so the row before the unreadable one is still to come.
        try:
            row = connection.execute(sql, (following, 1)).fetchone()
        except raised_here(sqlite3.Error, UnicodeDecodeError, MemoryError):
            failures += 1
            following += 2 ** max(0, failures - _SINGLE_STEPS)
        else:
            if row is None:
                return
            following = max(following, row[0] + 1)
            yield tuple(row[1:])
