"""Output for users: the results of a command on standard output, and files."""

import os
import secrets
import sys
import unicodedata
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from fcntl import F_DUPFD_CLOEXEC, fcntl
from pathlib import Path
from typing import TextIO

from mucudnn.errors import MucudnnError, raised_here
from mucudnn.forks import no_fork

# Control and format characters, such as those that turn the direction of writing, halves of characters, and
# separators of lines and paragraphs.
_UNPRINTABLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}


def printable(text: str) -> str:
    """Return a text in which characters that a terminal or browser would obey, not show, are spelled.

    The end of a line stays.
    """
    if text.isprintable():
        return text
    return "".join(character if character == "\n" else _spell(character) for character in text)


def _spell(character: str) -> str:
    hidden = unicodedata.category(character) in _UNPRINTABLE
    return character.encode("unicode_escape").decode() if hidden else character


_results: TextIO | None = None  # standard output, while `reserve_stdout` keeps it for results
_STDOUT = ("/dev/stdout", "/dev/fd/1", "/proc/self/fd/1")


def results() -> TextIO:
    """Return the stream for the results of a command."""
    return _results or sys.stdout


@contextmanager
def reserve_stdout() -> Iterator[None]:
    """Reserve standard output for `results`, and send whatever else is printed there to stderr.

    Programs parse the results, and a library may print too, in Python or in C: HiGHS 1.16 prints a banner.
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
            _flush_c()  # while what a library printed still goes to stderr
            os.dup2(stream.fileno(), descriptor)
            with suppress(OSError):  # the error is already on its way to the caller
                stream.close()


def restore_stdout() -> None:
    """Let standard output lead where it led before, for a program that replaces this process."""
    if _results:
        _flush_c()
        os.dup2(_results.fileno(), 1)


def _take(stream: TextIO, descriptor: int) -> TextIO:
    """Return another stream like this one, and let the descriptor lead to stderr."""
    stream.flush()
    _flush_c()
    copy = fcntl(descriptor, F_DUPFD_CLOEXEC, 3)  # above the standard streams, of which some may be closed
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


def _make(path: str, flags: int) -> int:
    """Open a file that must not exist yet: in a shared folder it could be a link to any file."""
    return os.open(path, flags | os.O_EXCL | os.O_NOFOLLOW, 0o666)


def write_lines(path: Path, lines: Iterable[str], what: str = "") -> None:
    """Write a file, whole or not at all. Raises MucudnnError; its message calls the file `what`."""
    if _results and str(path) in _STDOUT:  # these names lead to stderr while a command runs
        _results.flush()
        path = Path(f"/dev/fd/{_results.fileno()}")
    # A device such as /dev/stdout, or a link, must not be replaced by a file.
    in_place = os.path.islink(path) or (os.path.exists(path) and not os.path.isfile(path))
    written = path if in_place else path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(written, "w", encoding="utf-8", opener=None if in_place else _make) as file:
            file.writelines(lines)
        if not in_place:
            written.replace(path)
    except BaseException as error:
        if not in_place and not isinstance(error, FileExistsError):
            # The new file may not exist. The user needs the first error, not this one.
            with suppress(OSError, ValueError):
                written.unlink()
        # It is a ValueError if no system could have such a path.
        if isinstance(error, raised_here(OSError, ValueError)) and not isinstance(error, MucudnnError):
            reason = error.strerror if isinstance(error, OSError) else error
            raise MucudnnError(f"{what} {path} cannot be written: {reason}".lstrip()) from None
        raise
