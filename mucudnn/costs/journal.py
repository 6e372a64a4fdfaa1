"""The journal: the measurements of programs under `mucudnn run`, as one plan document after another.

The drop-in appends to it and reads it in later programs, so it stays after the cache has taken it in.
"""

import fcntl
import os
import re
import stat
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from errno import EAGAIN, EFBIG, EISDIR, ELOOP, ENXIO
from functools import partial
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

from mucudnn._native import Problem, parse_journal
from mucudnn.costs.claims import open_no_link
from mucudnn.costs.records import RACED, SUCCESS, Machine, Measurement
from mucudnn.costs.rows import CacheRows
from mucudnn.costs.schema import ENUMERATION, MEASUREMENT, Row
from mucudnn.errors import MucudnnError, raised_here
from mucudnn.input import MOST_BYTES
from mucudnn.problems.kernels import Kernel
from mucudnn.sizes import format_size

# The entry of a document's header that marks times of a race; native/shim/decisions/journal.cpp writes it.
_RACE = ("measuring", "race")
_REASONS = {
    EAGAIN: "another process keeps it locked",
    EFBIG: f"it has more than {format_size(MOST_BYTES)}",  # too large for the drop-in, too
    EISDIR: "it is not a regular file",
    ELOOP: "it is a symbolic link, which is not followed",
    ENXIO: "it is not a regular file",
}

DocumentTest: TypeAlias = Callable[[Mapping[str, str]], bool]  # takes a document's header


class JournalError(MucudnnError):
    """The journal cannot be read or changed."""


def journal_of(cache: Path) -> Path:
    """Return the path of a cache's journal, which native/shim/decisions/decider.cpp also knows."""
    return cache.with_name(cache.name + ".journal")


def take_journal(cache: CacheRows) -> None:
    """Take the journal of a cache into it, unless the journal has not changed since the last time.

    A document that a program is just writing is taken the next time. If the journal cannot be read, warn.
    Raise what the cache raises.
    """
    try:
        _run_on_journal(cache.path, "rb", partial(_take, cache))
    except JournalError as error:
        cache.warn(str(error))


def prune_journal(cache: Path, forget: DocumentTest) -> None:
    """Delete the documents for which `forget` is true, so that programs measure again what they hold.

    Raise JournalError, also while a program writes to the journal.
    """
    _run_on_journal(cache, "r+b", partial(_prune, forget))


def _run_on_journal(cache: Path, mode: Literal["rb", "r+b"], work: Callable[[BinaryIO], None]) -> None:
    """Call `work` with the journal of a cache, if there is one. Raise JournalError."""
    path = journal_of(cache)
    if not os.path.lexists(path):
        return
    try:
        with open(path, mode, opener=open_no_link) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode):
                raise OSError(EISDIR, "")
            if status.st_size > MOST_BYTES:
                raise OSError(EFBIG, "")
            work(file)
    except raised_here(OSError) as error:
        reason = _REASONS.get(error.errno or 0, error.strerror)
        raise JournalError(f"the journal {path} cannot be read: {reason}") from None


def _take(cache: CacheRows, file: BinaryIO) -> None:
    now = os.fstat(file.fileno())
    state = f"{now.st_ino} {now.st_size} {now.st_mtime_ns}"  # it differs after each change to the file
    if cache.query("SELECT 1 FROM taken_journal WHERE state = ?", (state,)):
        return
    cache.merge(rows_of(_decode(file.read())))
    cache.query("DELETE FROM taken_journal")
    cache.query("INSERT INTO taken_journal VALUES (?)", (state,))


def _prune(forget: DocumentTest, file: BinaryIO) -> None:
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    content = file.read()
    documents = re.split(rb"^(?=mucudnn plan )", content, flags=re.MULTILINE)
    left = b"".join(document for document in documents if not _is_forgotten(document, forget))
    if left != content:
        file.seek(0)
        file.write(left)
        file.truncate()


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
            raced = RACED if _RACE in header.items() else ""
            for problem, pass_, algorithm, time_ms, workspace, notes, wall_ms, cpu_ms, busy_tries in measured:
                notes = f"{notes} {raced}".strip()
                measurement = Measurement(
                    problem.mini_batch, algorithm, SUCCESS, workspace, notes,
                    time_ms, wall_ms, cpu_ms, busy_tries,
                )  # fmt: skip
                row = MEASUREMENT.row(machine, Kernel(problem, pass_), vars(measurement), measured_at=at)
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
