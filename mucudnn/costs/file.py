"""The cache's file: its format, and how to open it without harming a file that is not a cache."""

import os
import sqlite3
import stat
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

from mucudnn.costs.claims import Claims
from mucudnn.costs.schema import KERNEL_KEY, TABLES
from mucudnn.errors import MucudnnError, raised_here
from mucudnn.forks import close_before_fork, no_fork
from mucudnn.input import refuse_newer

VERSION = 1
APPLICATION_ID = 0x6D756344  # in the file's header, so that no other program's database is written to
STEP_USES = "step_uses"  # a table of counts about the rows of step times in this file
_MAGIC = b"SQLite format 3\0"
WAITING_SECONDS = 10.0  # for a process that has the file locked; a merge of 100,000 rows takes a few seconds
_MOMENT = 0.02  # seconds between two tries
_MOST_BYTES_OF_CELL = 64 * 2**20

T = TypeVar("T")
_kept_locked: set[Path] = set()  # the caches that stayed locked while this process waited
_File: TypeAlias = tuple[int, int]  # its device and its inode
_connected: Counter[_File] = Counter()  # this process's open connections to each file


class _Connection(sqlite3.Connection):
    """A connection that is counted while it is open."""

    file: _File | None = None

    def close(self) -> None:
        super().close()
        with no_fork:
            file, self.file = self.file, None
            if file is not None:
                _connected[file] -= 1


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


class UnwritableError(MucudnnError):
    """The cache cannot be written, and perhaps cannot be read."""


class DamagedError(UnwritableError):
    """The cache is damaged, or another process has replaced the file."""


class LockedError(UnwritableError):
    """Another process keeps the cache locked."""

    def __init__(self, path: Path) -> None:
        super().__init__(
            f"the cache {path} is locked by another process: let that process go on or end it, or name "
            "another file in MUCUDNN_CACHE"
        )


class Database:
    """A connection to sqlite that is closed before each fork.

    A child would inherit locks in sqlite's memory without the locks in the file system that they stand for.
    """

    def __init__(
        self, connection: sqlite3.Connection, connect: Callable[[], sqlite3.Connection] | None = None
    ) -> None:
        """Take a connection and, unless it is in memory, the function that opens it. Needs `no_fork`."""
        self._connection: sqlite3.Connection | None = connection
        self._connect = connect
        if connect is not None:
            close_before_fork(self)

    def connection(self) -> sqlite3.Connection:
        """Return the connection, opened again after a fork. Needs `no_fork`. Raise sqlite3.Error."""
        if self._connection is None:
            assert self._connect is not None
            self._connection = self._connect()
        return self._connection

    def close(self) -> None:
        """Close the connection, until it is next used."""
        with no_fork:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


def when_unlocked(path: Path, work: Callable[[], T]) -> T:
    """Return the result of `work`, repeated while another process has the cache locked. Raise LockedError.

    A process waits for a cache only once. If the cache stays locked, later work is tried without a wait.
    `work` raises LockedError or sqlite's error, and must hold no locks then: during the wait, signals are
    handled and other threads may fork.
    """
    patience = 0.0 if path in _kept_locked else WAITING_SECONDS
    end = time.monotonic() + patience
    while True:
        try:
            return work()
        except LockedError:
            pass
        except sqlite3.OperationalError as error:
            if not _is_lock_error(error):
                raise
        if time.monotonic() >= end:
            _kept_locked.add(path)
            raise LockedError(path)
        time.sleep(_MOMENT)


def _is_lock_error(error: sqlite3.OperationalError) -> bool:
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF  # higher bits give the kind of lock
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def open_file(path: Path) -> tuple[Database, Claims]:
    """Open a cache for reading and writing, and make it if it is missing.

    Raise UnwritableError, LockedError, DamagedError, NewerFileError. Raise MucudnnError if the file is not a
    cache, and leave it as it is.
    """
    try:
        try:
            path.parent.stat()
        except FileNotFoundError:
            path.parent.mkdir(parents=True, exist_ok=True)
        return when_unlocked(path, partial(_open_file, path))
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        if is_damage(error):
            raise failure(path, error) from None
        raise UnwritableError(f"the cache {path} cannot be written: {error}") from None
    except raised_here(OSError) as error:
        raise UnwritableError(f"the cache {path} cannot be written: {error.strerror or error}") from None


def _open_file(path: Path) -> tuple[Database, Claims]:
    _is_cache(path)
    claims = Claims(path)  # fails at once on a file system without locks, where sqlite would wait for them
    try:
        # Another process may be replacing a damaged file.
        with claims.claim("the file itself") as ours:
            if not ours:
                raise LockedError(path)
            return _open_to_write(path), claims
    except BaseException:
        claims.close()
        raise


def _open_to_write(path: Path) -> Database:
    with no_fork, _closed_on_error(connect(path)) as connection:
        _check_version(connection, path)
        connection.execute("BEGIN IMMEDIATE")  # fails where the file cannot be written
        if not check_tables(connection):
            make_tables(connection)
        connection.execute("COMMIT")
        with suppress(sqlite3.OperationalError):  # such as on a file system without shared memory
            connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = NORMAL")
        return Database(connection, partial(_connect_to_write, path))


def open_to_read(path: Path) -> Database:
    """Open an existing cache as it is, without a copy. Raise MucudnnError, DamagedError, NewerFileError."""
    try:
        if not _is_cache(path):
            raise MucudnnError(f"the cache {path} does not exist or is empty")
        # Reading while others write needs locks, and so the right to write. A file can also be read as if
        # nobody changed it, but without the rows in a writer's log. That is right if there is no log, and
        # otherwise the last resort of a reader that may not write.
        may_write = os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)
        has_log = path.with_name(path.name + "-wal").exists()
        options = ["?mode=rw"] if may_write else ["?mode=ro"] if has_log else []
        if not (may_write and has_log):
            options.append("?mode=ro&immutable=1")
        while True:
            connect = partial(_connect_to_read, path, options.pop(0))
            try:
                return when_unlocked(path, partial(_reader, connect))
            except (sqlite3.OperationalError, LockedError):
                if not options:
                    raise
    except sqlite3.OperationalError as error:
        raise MucudnnError(f"the cache {path} cannot be read: {error}") from None
    except raised_here(OSError) as error:
        raise MucudnnError(f"the cache {path} cannot be read: {error.strerror or error}") from None


def _reader(connect: Callable[[], sqlite3.Connection]) -> Database:
    with no_fork:
        return Database(connect(), connect)


def in_memory() -> Database:
    """Return an empty cache in memory."""
    with no_fork:
        connection = sqlite3.connect(":memory:", isolation_level=None)
        make_tables(connection)
        return Database(connection)


def make_tables(connection: sqlite3.Connection) -> None:
    """Make the tables of a new file."""
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {VERSION}")
    for table in TABLES:
        connection.execute(f"CREATE TABLE {table.name} ({table.definition})")
    # It has at most one row: the state of the journal when the cache last took it.
    connection.execute("CREATE TABLE taken_journal (state TEXT NOT NULL)")
    key = ", ".join(f'"{column}"' for column in (*KERNEL_KEY, "step"))
    connection.execute(
        f"CREATE TABLE {STEP_USES} ({key}, uses INTEGER NOT NULL, checks INTEGER NOT NULL, UNIQUE ({key}))"
    )


def check_tables(connection: sqlite3.Connection) -> bool:
    """Return False for a file without tables.

    Raise sqlite3.DatabaseError if a file lacks a table or a column, or has views or triggers: a view can
    compute without end, and a trigger can change other rows.
    """
    entries = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    for kind, name, sql in entries:
        if kind not in ("table", "index") or (kind == "table" and str(sql)[:12] != "CREATE TABLE"):
            raise sqlite3.DatabaseError(f"{name!r} is not a table of a cache")
    for table in TABLES if entries else ():
        # A traceback would keep the cursor of a comprehension, and with it the transaction, open.
        columns = connection.execute(f"PRAGMA table_info({table.name})").fetchall()
        present = {column for _, column, *_ in columns}
        if missing := table.columns.keys() - present:
            raise sqlite3.DatabaseError(f"the table {table.name} has no column {min(missing)}")
    return bool(entries)


def _is_cache(path: Path) -> bool:
    """Return False for a missing or empty file. Raise MucudnnError for a file that is not a cache."""
    try:
        status = path.stat()
        kind = stat.S_IFMT(status.st_mode)
        if kind not in (stat.S_IFREG, stat.S_IFDIR):  # such as a pipe, which would block
            raise MucudnnError(f"{path} is not a mucudnn cache: it is not a regular file")
        with no_fork:
            # Closing any descriptor of a file releases all locks that the process has on it. Another process
            # would take itself for the only one, and remove the log to which sqlite writes here.
            if _connected[status.st_dev, status.st_ino] > 0:
                return True
            with path.open("rb") as file:
                header = file.read(100)
    except FileNotFoundError:
        return False
    if header and (header[:16] != _MAGIC or int.from_bytes(header[68:72], "big") != APPLICATION_ID):
        raise MucudnnError(
            f"{path} is not a mucudnn cache: it was left as it is, name another in MUCUDNN_CACHE"
        )
    return bool(header)


def connect(path: Path, options: str = "") -> sqlite3.Connection:
    """Connect to a file as it is, without waiting for locks. Raise sqlite3.DatabaseError, OSError."""
    uri = path.absolute().as_uri() + options
    # Any thread that forks may close the connection.
    connection = sqlite3.connect(
        uri, uri=True, isolation_level=None, timeout=0, check_same_thread=False, factory=_Connection
    )
    with _closed_on_error(connection):
        with no_fork:
            status = path.stat()
            connection.file = status.st_dev, status.st_ino
            _connected[connection.file] += 1
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES_OF_CELL)
        # A damaged text must not raise an error here, where nothing says which row it is in.
        connection.text_factory = partial(str, encoding="utf-8", errors="surrogateescape")
    return connection


def _connect_to_write(path: Path) -> sqlite3.Connection:
    """Open again a file that was opened before. Raise sqlite3.OperationalError."""
    with _closed_on_error(connect(path, "?mode=rw")) as connection:
        connection.execute("PRAGMA synchronous = NORMAL")
    return connection


def _connect_to_read(path: Path, options: str) -> sqlite3.Connection:
    """Open a file to read. Raise sqlite3.OperationalError, MucudnnError, NewerFileError."""
    connection = connect(path, options)
    try:
        _check_version(connection, path)
        check_tables(connection)
        connection.execute("PRAGMA query_only = 1")
        return connection
    except BaseException as error:
        connection.close()
        if isinstance(error, sqlite3.DatabaseError | UnicodeDecodeError) and is_damage(error):
            raise failure(path, error) from None
        raise


def free_name(path: Path, end: str) -> Path:
    """Return the path with an end, and with a number if that file exists already."""
    number, free = 1, path.with_name(f"{path.name}.{end}")
    while True:
        try:
            free.lstat()
        except FileNotFoundError:
            return free
        number += 1
        free = path.with_name(f"{path.name}.{end}.{number}")


def _check_version(connection: sqlite3.Connection, path: Path) -> None:
    try:
        version = int(connection.execute("PRAGMA user_version").fetchone()[0])
        connection.execute("SELECT count(*) FROM sqlite_master")
    except sqlite3.OperationalError:
        raise
    except (sqlite3.DatabaseError, UnicodeDecodeError) as error:
        raise failure(path, error) from None
    refuse_newer(f"cache {path}", version, VERSION, "name another file in MUCUDNN_CACHE")


def failure(path: Path, error: sqlite3.DatabaseError | UnicodeDecodeError) -> UnwritableError:
    """Return the error to show for sqlite's error about an open file.

    It is a UnicodeDecodeError if sqlite's message quotes a damaged file.
    """
    if is_damage(error):
        return DamagedError(f"the cache {path} is damaged: {error}; move it away to start anew")
    return UnwritableError(f"the cache {path} failed: {error}")


def is_damage(error: sqlite3.DatabaseError | UnicodeDecodeError) -> bool:
    """Return whether damage to the file may have caused an error; another schema counts as damage."""
    if isinstance(error, sqlite3.OperationalError):
        code = getattr(error, "sqlite_errorcode", None)
        return code in (sqlite3.SQLITE_ERROR, sqlite3.SQLITE_READONLY_DBMOVED)
    return not isinstance(error, sqlite3.ProgrammingError)
