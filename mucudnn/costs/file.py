"""The cache's file: how it is opened, how a damaged one is replaced, and which errors it raises.

This is the only module that turns the errors of sqlite, of the file system and of wrong rows into ours.
"""

import os
import sqlite3
import stat
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from functools import partial
from pathlib import Path

from mucudnn.costs.schema import FORMAT
from mucudnn.errors import MucudnnError, raised_here
from mucudnn.forks import no_fork
from mucudnn.input import refuse_newer

APPLICATION_ID = 0x6D756344  # in the file's header, so that no other program's database is written to
WAITING_SECONDS = 10.0  # for a process that has the file locked; a merge of 100,000 rows takes a few seconds
_MOST_BYTES_OF_CELL = 64 * 2**20
_TABLES = (
    # `own_key` and `content` are JSON: the values of a kind's own key, and all that have no column here.
    "CREATE TABLE rows (kind TEXT NOT NULL, engine TEXT NOT NULL, device TEXT NOT NULL, "
    "library TEXT NOT NULL, threads INTEGER NOT NULL, problem TEXT NOT NULL, pass TEXT NOT NULL, "
    "own_key TEXT NOT NULL, rank INTEGER NOT NULL, measured_at TEXT NOT NULL, content TEXT NOT NULL, "
    "PRIMARY KEY (device, library, threads, problem, pass, kind, own_key)) WITHOUT ROWID",
    # It has at most one row: the state of the journal when the cache last took it.
    "CREATE TABLE taken_journal (state TEXT NOT NULL)",
    # How often programs with this cache used the kept times of a step. Exchange leaves these counts out,
    # because they say nothing about another cache.
    "CREATE TABLE step_uses (step TEXT PRIMARY KEY, uses INTEGER, checks INTEGER) WITHOUT ROWID",
)

_kept_locked: set[Path] = set()  # the caches that stayed locked while this process waited


class CacheError(MucudnnError):
    """The file of the cache cannot be used."""


class DamagedError(CacheError):
    """The file is damaged or of an older format, or another process has replaced it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"the cache {path} {reason}; move it away to start anew")
        self.reason = reason


@contextmanager
def cache_errors(path: Path) -> Iterator[None]:
    """Raise CacheError for an error of sqlite or of the file system, and for a ValueError about a row."""
    try:
        yield
    except (MucudnnError, sqlite3.ProgrammingError):
        raise
    except raised_here(OSError) as error:
        raise CacheError(f"the cache {path} cannot be used: {error.strerror or error}") from None
    except raised_here(sqlite3.Error, ValueError, OverflowError) as error:
        code = getattr(error, "sqlite_errorcode", 0)
        if code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
            _kept_locked.add(path)
            raise CacheError(
                f"the cache {path} is locked by another process: let that process go on or end it, or name "
                "another file in MUCUDNN_CACHE"
            ) from None
        is_damage = code in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_READONLY_DBMOVED)
        if isinstance(error, sqlite3.OperationalError) and not is_damage:
            raise CacheError(f"the cache {path} cannot be used: {error}") from None
        raise DamagedError(path, f"is damaged: {error}") from None


def open_to_write(path: Path) -> sqlite3.Connection:
    """Open a cache, and make it if it is missing. Raise errors that `cache_errors` replaces."""
    with _closed_on_error(_connect(path)) as connection:
        connection.execute("BEGIN IMMEDIATE")  # fails where the file cannot be written
        if not _has_tables(connection, path):
            _make_tables(connection)
        connection.execute("COMMIT")
        with suppress(sqlite3.OperationalError):  # such as on a file system without shared memory
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        return connection


def open_to_read(path: Path) -> sqlite3.Connection:
    """Open an existing cache as it is, without a copy. Raise as `open_to_write` does."""
    if not is_cache(path):
        raise MucudnnError(f"the cache {path} does not exist or is empty")
    # Reading while others write needs locks, and so the right to write. A file can also be read as if nobody
    # changed it, but without the rows in a writer's log. That is right if there is no log, and otherwise the
    # last resort of a reader that may not write.
    may_write = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
    has_log = path.with_name(path.name + "-wal").exists()
    options = ["?mode=rw"] if may_write else ["?mode=ro"] if has_log else []
    if not (may_write and has_log):
        options.append("?mode=ro&immutable=1")
    for option in options[:-1]:
        with suppress(sqlite3.OperationalError):
            return _open_to_read(path, option)
    return _open_to_read(path, options[-1])


def _open_to_read(path: Path, option: str) -> sqlite3.Connection:
    with _closed_on_error(_connect(path, option)) as connection:
        if not _has_tables(connection, path):
            raise MucudnnError(f"the cache {path} has no tables: it is empty")
        connection.execute("PRAGMA query_only = 1")
        return connection


def is_cache(path: Path) -> bool:
    """Return False for a missing or empty file. Raise MucudnnError if it is not a cache, OSError."""
    try:
        status = path.stat()
    except FileNotFoundError:
        return False
    if stat.S_IFMT(status.st_mode) not in (stat.S_IFREG, stat.S_IFDIR):  # such as a pipe, which would block
        raise MucudnnError(f"{path} is not a mucudnn cache: it is not a regular file")
    if not status.st_size:
        return False
    try:
        # sqlite keeps the locks that this process has on the file. Closing any other descriptor of it would
        # release them, and another process would then remove the log to which sqlite writes here.
        with no_fork, closing(_connect(path, "?mode=ro&immutable=1")) as connection:
            ((identity,),) = connection.execute("PRAGMA application_id")
    except raised_here(sqlite3.DatabaseError):  # so no connection of this process can use the file
        with path.open("rb") as file:
            identity = int.from_bytes(file.read(72)[68:], "big")
    if identity != APPLICATION_ID:
        raise MucudnnError(
            f"{path} is not a mucudnn cache: it was left as it is, name another in MUCUDNN_CACHE"
        )
    return True


def _connect(path: Path, options: str = "") -> sqlite3.Connection:
    """Connect to a file as it is. Raise sqlite3.DatabaseError."""
    connection = sqlite3.connect(
        path.absolute().as_uri() + options,
        uri=True,
        isolation_level=None,
        timeout=0 if path in _kept_locked else WAITING_SECONDS,
        check_same_thread=False,  # any thread that forks may close the connection
    )
    with _closed_on_error(connection):
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES_OF_CELL)
        # The check of a row reports a text that is not UTF-8.
        connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
        return connection


def connect_in_memory(_: Path) -> sqlite3.Connection:
    """Return an empty cache in memory."""
    connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
    _make_tables(connection)
    return connection


def _make_tables(connection: sqlite3.Connection) -> None:
    for statement in (
        f"PRAGMA application_id = {APPLICATION_ID}", f"PRAGMA user_version = {FORMAT}", *_TABLES
    ):  # fmt: skip
        connection.execute(statement)


def _has_tables(connection: sqlite3.Connection, path: Path) -> bool:
    """Return False for a file without tables. Raise DamagedError, NewerFileError, sqlite3.DatabaseError.

    A file with views or triggers counts as damaged: a view can compute without end, and a trigger can change
    other rows.
    """
    entries = connection.execute("SELECT type, sql FROM sqlite_master").fetchall()
    if not entries:
        return False
    ((version,),) = connection.execute("PRAGMA user_version")
    refuse_newer(f"cache {path}", version, FORMAT, "name another file in MUCUDNN_CACHE")
    if version < FORMAT:
        raise DamagedError(path, f"has format {version}, and this mucudnn reads format {FORMAT}")
    kinds, statements = zip(*entries, strict=True)
    if {"view", "trigger"}.intersection(kinds) or not {*_TABLES}.issubset(statements):
        raise sqlite3.DatabaseError("its tables are not those of a cache")
    return True


@contextmanager
def _closed_on_error(connection: sqlite3.Connection) -> Iterator[sqlite3.Connection]:
    """Close a connection if the block raises, because the traceback would keep it, and its transaction, open.

    The error may also be that of a signal handler.
    """
    try:
        yield connection
    except BaseException:
        connection.close()
        raise


def set_aside(path: Path) -> str:
    """Rename a damaged file, and leave an empty file in its place. Return the renamed file. Raise OSError."""
    mode, aside = path.stat().st_mode & 0o777, f"{path}.damaged"
    while os.path.lexists(aside):
        aside += ".again"
    # The log moves first, because sqlite would delete it if the file is missing.
    for suffix in ("-wal", ""):
        with suppress(FileNotFoundError):
            Path(f"{path}{suffix}").rename(f"{aside}{suffix}")
    Path(f"{path}-shm").unlink(missing_ok=True)
    # The new file is as private as the old one, and cannot be a link to another file.
    with suppress(FileExistsError):  # another process has made it
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode))
    return aside
