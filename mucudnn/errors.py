"""Errors that a person reads: each is one line, and carries the exit code of the command that met it.

Those that the Python functions raise are also the built-in error that people expect.
"""

_LONGEST = 100  # characters of a value in a message


def shown(value: object) -> str:
    """Return a value as a message shows it: its repr in one line, cut where it is long, or else its type."""
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an int of {value.bit_length()} bits"
    try:
        text = " ".join(repr(value).split())
    except Exception:
        return f"a {type(value).__name__}"
    return text if len(text) <= _LONGEST else f"a {type(value).__name__}, {text[: _LONGEST // 2]}…"


class MucudnnError(Exception):
    """The command failed."""

    exit_code = 1


class UsageError(MucudnnError, ValueError):
    """What was asked for cannot be understood."""

    exit_code = 2


class ArgumentTypeError(MucudnnError, TypeError):
    """An argument is of a type, or holds a data type, that is not taken."""

    exit_code = 2


class MixedDevicesError(UsageError, RuntimeError):
    """Arrays of one call lie on different devices."""


class NotDifferentiableError(MucudnnError, RuntimeError):
    """A gradient was asked for that cannot be given."""


class NothingFitsError(MucudnnError, RuntimeError):
    """No configuration stays within the limit."""

    exit_code = 3


class NoEngineError(MucudnnError, RuntimeError):
    """There is no such engine, library or device."""

    exit_code = 4


class MissingExtraError(MucudnnError, ImportError):
    """A package that only a part of mucudnn needs is not installed."""

    exit_code = 4


class NewerFileError(MucudnnError):
    """A cache or plan was written by a newer version."""

    exit_code = 5


class InterruptedByUserError(MucudnnError):
    """The user pressed Ctrl-C; 128 + SIGINT, as a shell reports it."""

    exit_code = 130
