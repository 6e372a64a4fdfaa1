"""Errors for people: each message is one line, and each class has the exit code of a command that fails so.

Errors of the Python functions are also subclasses of a fitting built-in error.
"""

_LONGEST = 100  # the most characters of a value in a message


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


class MucudnnError(Exception):
    """A failure that a message explains; the base of all errors of mucudnn."""

    exit_code = 1


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
