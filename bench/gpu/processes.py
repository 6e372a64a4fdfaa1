"""Processes that end when they are to end, with all that they have started."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE, CompletedProcess, Popen

from mucudnn.errors import MucudnnError

ROOT = Path(__file__).parents[2]
PR_SET_PDEATHSIG = 1
LAST_SECONDS = 10.0  # for what a process does when it is told to end


class ProgramError(MucudnnError):
    """A program failed, or took too long: which says nothing about what is measured next."""


def finished(
    command: Sequence[str], seconds: float, environment: dict[str, str] | None = None
) -> CompletedProcess[str]:
    """What a command printed. Raises ProgramError where it takes longer; its whole session is ended then."""
    with Popen(
        command, cwd=ROOT, env=environment, stdout=PIPE, stderr=PIPE, text=True, errors="replace",
        start_new_session=True,
    ) as process:  # fmt: skip
        try:
            output, messages = process.communicate(timeout=seconds)
        except BaseException as error:
            os.killpg(process.pid, signal.SIGKILL)
            if isinstance(error, subprocess.TimeoutExpired):
                raise ProgramError(f"it was not done after {seconds:.0f} s") from None
            raise
    return CompletedProcess(command, process.returncode, output, messages)


def watched(command: Sequence[str], seconds: float) -> int | None:
    """The exit code of a command that prints where we do; None where its time was over and it was ended.

    Whatever ends the waiting ends the command.
    """
    with Popen(command, cwd=ROOT) as process:
        try:
            return process.wait(seconds)
        except BaseException as error:
            process.terminate()
            try:
                process.wait(LAST_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
            if isinstance(error, subprocess.TimeoutExpired):
                return None
            raise


def end_with_parent() -> None:
    """Let the end of the process that started this one, whatever ends it, be a SIGTERM to this one."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def end_on_terminate() -> None:
    """Let SIGTERM end this process as Ctrl-C does: what it has begun is ended, and what it has is kept."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
