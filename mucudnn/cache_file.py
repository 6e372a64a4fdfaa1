"""The cache's file: its format, and how it is opened without harm to what is no cache."""

import sqlite3
from contextlib import suppress
from pathlib import Path

from mucudnn.descriptor import GEOMETRY
from mucudnn.errors import MucudnnError, NewerFileError

VERSION = 1
APPLICATION_ID = 0x6D756344  # in the file's header, so that no other program's database is written to
_MAGIC = b"SQLite format 3\0"
_BUSY_SECONDS = 10

_SCHEMA = f"""
CREATE TABLE measurements (
  engine TEXT NOT NULL, device TEXT NOT NULL, library TEXT NOT NULL, threads INTEGER NOT NULL,
  problem TEXT NOT NULL, data_type TEXT NOT NULL, layout TEXT NOT NULL, math TEXT NOT NULL,
  {", ".join(f'"{column}" INTEGER' for column in GEOMETRY)},
  pass TEXT NOT NULL, micro_batch INTEGER NOT NULL, algorithm TEXT NOT NULL, status TEXT NOT NULL,
  workspace INTEGER NOT NULL, notes TEXT NOT NULL, median_ms REAL, spread_ms REAL,
  accumulator INTEGER NOT NULL, measured_at TEXT NOT NULL, version TEXT NOT NULL,
  UNIQUE (device, library, threads, problem, pass, micro_batch, algorithm)
);
CREATE TABLE comparisons (
  engine TEXT NOT NULL, device TEXT NOT NULL, library TEXT NOT NULL, threads INTEGER NOT NULL,
  problem TEXT NOT NULL, pass TEXT NOT NULL, undivided TEXT NOT NULL, divided TEXT NOT NULL,
  undivided_ms REAL, divided_ms REAL NOT NULL, undivided_spread_ms REAL, divided_spread_ms REAL NOT NULL,
  error REAL, same_algorithms_error REAL, undivided_error REAL,
  measured_at TEXT NOT NULL, version TEXT NOT NULL,
  UNIQUE (device, library, threads, problem, pass, undivided, divided)
);
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {VERSION};
"""


class UnwritableError(MucudnnError):
    """The cache can only be read, or not even that."""


def open_file(path: Path) -> sqlite3.Connection:
    """For reading and writing; made where it is missing.

    Raises UnwritableError; MucudnnError where the file is no cache, which is never touched then;
    NewerFileError.
    """
    connection = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        exists = _is_cache(path)
        connection = _connect(path)
        if exists:
            _check(connection, path)
        connection.execute("BEGIN IMMEDIATE")  # fails where the file cannot be written
        if not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
            for statement in _SCHEMA.split(";"):
                connection.execute(statement)
        connection.execute("COMMIT")
        with suppress(sqlite3.OperationalError):  # file systems without shared memory do without
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
    except (OSError, sqlite3.OperationalError, MucudnnError) as error:
        if connection is not None:
            connection.close()
        if isinstance(error, MucudnnError):
            raise
        raise UnwritableError(f"the cache {path} cannot be written: {_reason(error)}") from None
    return connection


def copy_file(path: Path) -> sqlite3.Connection:
    """A copy in memory of an existing cache. Raises MucudnnError, NewerFileError."""
    try:
        if not _is_cache(path):
            raise MucudnnError(f"the cache {path} does not exist or is empty")
        # Without a log beside it nobody is writing; then not even its directory need be writable.
        log = path.with_name(path.name + "-wal")
        source = _connect(path, "?mode=ro" if log.exists() else "?mode=ro&immutable=1")
        try:
            _check(source, path)
            connection = sqlite3.connect(":memory:", isolation_level=None)
            source.backup(connection)
        finally:
            source.close()
    except (OSError, sqlite3.OperationalError) as error:
        raise MucudnnError(f"the cache {path} cannot be read: {_reason(error)}") from None
    return connection


def empty() -> sqlite3.Connection:
    """A cache in memory with nothing in it."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    connection.executescript(_SCHEMA)
    return connection


def _is_cache(path: Path) -> bool:
    """False where there is no file, or an empty one. Raises MucudnnError for a file that is no cache."""
    try:
        with path.open("rb") as file:
            header = file.read(100)
    except FileNotFoundError:
        return False
    if header and (header[:16] != _MAGIC or int.from_bytes(header[68:72], "big") != APPLICATION_ID):
        raise MucudnnError(
            f"{path} is not a mucudnn cache: it was left as it is, name another in MUCUDNN_CACHE"
        )
    return bool(header)


def _connect(path: Path, options: str = "") -> sqlite3.Connection:
    uri = path.absolute().as_uri() + options
    return sqlite3.connect(uri, uri=True, isolation_level=None, timeout=_BUSY_SECONDS)


def _check(connection: sqlite3.Connection, path: Path) -> None:
    try:
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.OperationalError:
        raise
    except sqlite3.DatabaseError as error:
        raise MucudnnError(f"the cache {path} is damaged: {error}; move it away to start anew") from None
    if version > VERSION:
        raise NewerFileError(
            f"the cache {path} is of version {version}, this mucudnn reads up to version {VERSION}: "
            "upgrade mucudnn, or name another file in MUCUDNN_CACHE"
        )


def _reason(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
