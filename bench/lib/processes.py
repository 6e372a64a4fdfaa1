"""Child processes with a time limit."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE, CompletedProcess, Popen

from mucudnn.errors import MucudnnError

ROOT = Path(__file__).parents[3]
PR_SET_PDEATHSIG = 1
LAST_SECONDS = 10.0  # a process has this long to end after SIGTERM; then it is killed


class ProgramError(MucudnnError):
    """The failure or the timeout of a measured program, which does not affect later measurements."""


def run_captured(
    command: Sequence[str], seconds: float, environment: dict[str, str] | None = None, *, check: bool = False
) -> CompletedProcess[str]:
    """Run a command, and return its exit code and output.

    Raises ProgramError if it takes longer than `seconds`, and kills its whole session. With `check`, also
    raises it, with the last line of the messages, if the command fails.
    """
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
    if check and process.returncode:
        raise ProgramError(messages.strip().rpartition("\n")[2] or f"exit code {process.returncode}")
    return CompletedProcess(command, process.returncode, output, messages)


def run_visibly(command: Sequence[str], seconds: float) -> int | None:
    """Run a command whose output goes to ours. Return its exit code, or None if its time was over.

    A timeout, and any exception in this process, ends the command.
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
    """Make the kernel send SIGTERM to this process when its parent ends in any way."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def end_on_terminate() -> None:
    """Make SIGTERM raise KeyboardInterrupt, as Ctrl-C does, so that cleanup runs and records are kept."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
