"""Errors that a person reads: each is one line, and carries the exit code of the command that met it."""


class MucudnnError(Exception):
    """The command failed."""

    exit_code = 1


class UsageError(MucudnnError):
    """What was asked for cannot be understood."""

    exit_code = 2


class NothingFitsError(MucudnnError):
    """No configuration stays within the limit."""

    exit_code = 3


class NoEngineError(MucudnnError):
    """There is no such engine, library or device."""

    exit_code = 4


class NewerFileError(MucudnnError):
    """A cache or plan was written by a newer version."""

    exit_code = 5


class InterruptedByUserError(MucudnnError):
    """The user pressed Ctrl-C; 128 + SIGINT, as a shell reports it."""

    exit_code = 130
