"""Errors for people: each message is one line, and each class has the exit code of a command that it ends.

Errors of the Python functions are also subclasses of a fitting built-in error.
"""

import difflib
import sys
from collections.abc import Iterable
from typing import TypeVar

E = TypeVar("E", bound=Exception)

_LONGEST = 100  # the most characters of a value in a message
_CALLED = sys.stdlib_module_names | {"mucudnn", "numpy", "torch"}


def raised_here(*types: type[E]) -> tuple[type[E], ...]:
    """Return the types for an `except`, but none if a signal handler raised the error that is being handled.

    A program's handler runs in the middle of our code and may raise any error, such as a TimeoutError, which
    is an OSError. That error belongs to the program. Its traceback leads into code that we never call.
    """
    error = sys.exception()
    trace = None if error is None else error.__traceback__
    while trace is not None:
        if str(trace.tb_frame.f_globals.get("__name__")).partition(".")[0] not in _CALLED:
            return ()
        trace = trace.tb_next
    return types


def shown(value: object) -> str:
    """Return a value as a message shows it: its repr in one line, cut if it is long.

    If the repr fails, return the value's type.
    """
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an int of {value.bit_length()} bits"
    try:
        text = " ".join(repr(value).split())
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"a {type(value).__name__}, {text[: _LONGEST // 2]}…"


def suggestion(word: str, names: Iterable[str]) -> str:
    """Return `: did you mean …?` with the names that resemble a word most, or `.` if none does."""
    near = difflib.get_close_matches(word.lower(), names, n=2, cutoff=0.5)
    return f": did you mean {' or '.join(near)}?" if near else "."


class MucudnnError(Exception):
    """A failure that a message explains; the base of all errors of mucudnn."""

    exit_code = 1


class MucudnnWarning(RuntimeWarning):
    """A condition that is not an error but that a program should know about."""


class UsageError(MucudnnError, ValueError):
    """An argument, flag or variable has a value that cannot be used."""

    exit_code = 2


class ArgumentTypeError(MucudnnError, TypeError):
    """An argument has a type, or an array a data type, that is not supported."""

    exit_code = 2


class MixedDevicesError(UsageError, RuntimeError):
    """The arrays of one call are on different devices."""


class NotDifferentiableError(MucudnnError, RuntimeError):
    """A gradient is required that cannot be computed."""


class NothingFitsError(MucudnnError, RuntimeError):
    """No configuration stays within the limit."""

    exit_code = 3


class NotMeasuredError(MucudnnError):
    """A kernel has no measurements, and none may be made."""


class NoEngineError(MucudnnError, RuntimeError):
    """An engine, library or device does not exist or does not work."""

    exit_code = 4


class MissingExtraError(MucudnnError, ImportError):
    """A package that only a part of mucudnn needs is not installed."""


class NewerFileError(MucudnnError):
    """A cache or plan was written by a newer version."""

    exit_code = 5


class InterruptedByUserError(MucudnnError):
    """The user pressed Ctrl-C; the exit code is 128 + SIGINT, as a shell reports it."""

    exit_code = 130
