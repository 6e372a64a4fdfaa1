"""Standard output, which is reserved for a command's results."""

import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from pathlib import Path
from typing import TextIO

from mucudnn.forks import no_fork

_results: TextIO | None = None  # standard output, while `reserve_stdout` keeps it for results
_STDOUT = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def results() -> TextIO:
    """Return the stream for the results of a command."""
    return _results or sys.stdout


def fill(text: str, stream: TextIO) -> str:
    """Return a sentence in lines that fit the terminal behind a stream, which would break words.

    The lines keep its indent. The text is unchanged if the stream is not a terminal, because programs read
    lines.
    """
    width, sentence = columns(stream), text.lstrip(" ")
    if width is None:
        return text
    lines = textwrap.TextWrapper(width, break_long_words=False, break_on_hyphens=False)
    lines.initial_indent = lines.subsequent_indent = " " * (len(text) - len(sentence))
    return lines.fill(sentence)


def columns(stream: TextIO | None) -> int | None:
    """Return the width of the terminal behind a stream, or None if the stream is not a terminal."""
    return shutil.get_terminal_size().columns if stream and stream.isatty() else None


@contextmanager
def reserve_stdout() -> Iterator[None]:
    """Reserve standard output for `results`, and redirect all else that is printed there to stderr.

    Programs parse the results, but a Python or C library may print too: HiGHS 1.16 prints a banner.
    Raises OSError if the results cannot be written.
    """
    global _results
    before = sys.stdout
    if _results or before is None:  # a program may be started without standard output
        yield
        return
    try:
        descriptor = before.fileno()
    except OSError:  # a caller's own stream, without a file
        descriptor = None
    _results = before if descriptor is None else _take(before, descriptor)
    sys.stdout = sys.stderr
    try:
        yield
        _results.flush()
    finally:
        stream, _results, sys.stdout = _results, None, before
        if descriptor is not None:
            _flush_c()  # a library's output must still go to stderr
            os.dup2(stream.fileno(), descriptor)
            with suppress(OSError):  # the error is already on its way to the caller
                stream.close()


def path_of_results(path: Path) -> Path:
    """Return the path of the results if `path` names standard output, else `path`."""
    if _results is None or str(path) not in _STDOUT:
        return path
    _results.flush()
    return Path(f"/dev/fd/{_results.fileno()}")


def restore_stdout() -> None:
    """Restore standard output, for a program that replaces this process."""
    if _results:
        _flush_c()
        os.dup2(_results.fileno(), 1)


def _take(stream: TextIO, descriptor: int) -> TextIO:
    """Return a copy of a stream, and redirect its descriptor to stderr."""
    stream.flush()
    _flush_c()
    copy = fcntl(descriptor, F_DUPFD_CLOEXEC, 3)  # above the standard streams, some of which may be closed
    own = open(copy, "w", encoding=stream.encoding, errors=stream.errors)  # noqa: SIM115  # outlives this call
    try:
        os.dup2(2, descriptor)
    except OSError:  # stderr is closed
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), descriptor)
    return own


def _flush_c() -> None:
    """Write what C libraries have buffered."""
    with no_fork:
        import ctypes

    ctypes.CDLL(None).fflush(None)
