"""The journal: the measurements of programs under `mucudnn run`, as one plan document after another.

The drop-in appends to it and reads it in later programs, so it stays after the cache has taken it in.
"""

import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from errno import EISDIR, ELOOP, ENAMETOOLONG, ENXIO
from pathlib import Path
from typing import BinaryIO, TypeAlias

from mucudnn._native import Problem, parse_journal
from mucudnn.costs.records import RACED, SUCCESS, Machine, Measurement
from mucudnn.costs.rows import CacheRows
from mucudnn.costs.schema import ENUMERATION, MEASUREMENT, Row
from mucudnn.errors import MucudnnError, raised_here
from mucudnn.input import MOST_BYTES
from mucudnn.problems.kernels import Kernel
from mucudnn.sizes import format_size

WAITING_SECONDS = 2.0  # for a program that appends to the journal
# The entry of a document's header that marks times of a race; native/shim/decisions/journal.cpp writes it.
_RACE = ("measuring", "race")

_kept_locked: set[Path] = set()  # the journals that stayed locked while this process waited

DocumentTest: TypeAlias = Callable[[Mapping[str, str]], bool]  # takes a document's header


class JournalError(MucudnnError):
    """The journal cannot be read or changed."""


def journal_of(cache: Path) -> Path:
    """Return the path of a cache's journal, which native/shim/decisions/decider.cpp also knows."""
    return cache.with_name(cache.name + ".journal")


def take_journal(cache: CacheRows, forget: DocumentTest | None = None) -> None:
    """Take the journal of a cache into it, unless the journal has not changed since the last time.

    Delete from the journal each document for which `forget` is true, so that programs measure again what the
    cache has deleted. Raise JournalError, and what the cache raises.
    """
    path = journal_of(cache.path)
    try:
        with open(path, "rb" if forget is None else "r+b", opener=_open) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise JournalError(f"the journal {path} cannot be read: it is not a regular file")
            try:
                _lock(file, fcntl.LOCK_SH if forget is None else fcntl.LOCK_EX, path)
                _take(cache, file, path, forget)
            finally:
                # Closing would not release the lock if a child of fork() had inherited the open file.
                fcntl.flock(file, fcntl.LOCK_UN)
    except (FileNotFoundError, NotADirectoryError):
        return
    except raised_here(OSError) as error:
        if error.errno == ENAMETOOLONG:  # so it does not exist
            return
        reason = "it is a symbolic link, which is not followed" if error.errno == ELOOP else error.strerror
        reason = "it is not a regular file" if error.errno in (EISDIR, ENXIO) else reason
        raise JournalError(f"the journal {path} cannot be read: {reason}") from None


def _take(cache: CacheRows, file: BinaryIO, path: Path, forget: DocumentTest | None) -> None:
    if forget is None and cache.query("SELECT 1 FROM taken_journal WHERE state = ?", (_state(file),)):
        return
    content = _read(file, path)
    cache.merge(rows_of(_decode(content)))
    if forget is not None:
        _rewrite(file, content, forget)
    cache.query("DELETE FROM taken_journal")
    cache.query("INSERT INTO taken_journal VALUES (?)", (_state(file),))


def _open(path: str, flags: int) -> int:
    """Open a file as the drop-in does: without following a link, or waiting for a pipe's writer."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def _read(file: BinaryIO, path: Path) -> bytes:
    """Return the content. Raise JournalError for a file that is too large, also for the drop-in."""
    if os.fstat(file.fileno()).st_size > MOST_BYTES:
        raise JournalError(f"the journal {path} cannot be read: it has more than {format_size(MOST_BYTES)}")
    return file.read()


def _state(file: BinaryIO) -> str:
    """Return a text that differs after each change to the file."""
    now = os.fstat(file.fileno())
    return f"{now.st_ino} {now.st_size} {now.st_mtime_ns}"


def _lock(file: BinaryIO, kind: int, path: Path) -> None:
    """Lock a journal. A process waits only once for the process that has it. Raise JournalError."""
    end = time.monotonic() + (0 if path in _kept_locked else WAITING_SECONDS)
    while True:
        try:
            fcntl.flock(file, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            pass
        if time.monotonic() >= end:
            _kept_locked.add(path)
            raise JournalError(f"the journal {path} cannot be read: another process keeps it locked")
        time.sleep(0.01)


def _rewrite(file: BinaryIO, content: bytes, forget: DocumentTest) -> None:
    """Remove the documents from the file that are to be forgotten."""
    documents = re.split(rb"^(?=mucudnn plan )", content, flags=re.MULTILINE)
    left = b"".join(document for document in documents if not _is_forgotten(document, forget))
    if left != content:
        file.seek(0)
        file.write(left)
        file.truncate()
        file.flush()


def _is_forgotten(document: bytes, forget: DocumentTest) -> bool:
    try:
        return any(forget(header) for header, *_ in parse_journal(_decode(document)))
    except (KeyError, ValueError):  # not the header of a journal
        return False


def _decode(content: bytes) -> str:
    return content.decode(errors="replace")


def rows_of(text: str) -> Iterator[Row]:
    """Yield the rows of all documents that can be read."""
    for header, measured, candidates in parse_journal(text):
        try:
            is_host = header["engine"] == "host"
            machine = Machine(header["engine"], header["device"], header["library"], int(header["threads"]))
            seconds = int(header["measured_at"])
            at = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
            raced = _RACE in header.items()
            for problem, pass_, algorithm, time_ms, workspace, notes, wall_ms, cpu_ms, busy_tries in measured:
                kernel = Kernel(problem, pass_)
                notes = f"{notes} {RACED}".strip() if raced else notes
                measurement = Measurement(
                    problem.mini_batch, algorithm, SUCCESS, workspace, notes,
                    time_ms, wall_ms, cpu_ms, busy_tries,
                )  # fmt: skip
                row = MEASUREMENT.row(machine, kernel, vars(measurement), measured_at=at)
                yield MEASUREMENT, MEASUREMENT.checked(row)
            for problem, pass_, api, text in candidates:
                if api == _api_of_engine(problem, is_host=is_host):
                    listed = {"micro_batch": problem.mini_batch, "candidates": text}
                    row = ENUMERATION.row(machine, Kernel(problem, pass_), listed, measured_at=at)
                    yield ENUMERATION, ENUMERATION.checked(row)
        except raised_here(ValueError, KeyError, OverflowError, OSError):  # not the header of a journal
            continue


def _api_of_engine(problem: Problem, *, is_host: bool) -> str:
    """Return the API whose candidates an engine lists for a problem: see native/bindings/engine.cpp."""
    is_mixed = len(set(problem.layouts.values())) > 1 or problem.y_type != problem.data_type
    return "legacy" if is_host and not problem.epilogue and not is_mixed else "graph"
