"""Child processes with a time limit, and the measured programs, which know nothing of mucudnn."""

from __future__ import annotations

import ctypes
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from subprocess import PIPE, CompletedProcess, Popen
from typing import TYPE_CHECKING, Any

from mucudnn.errors import MucudnnError
from mucudnn.settings import CACHE, LIBRARY, LOG, SETTINGS

if TYPE_CHECKING:
    from bench.suites.gpu.run import Run

ROOT = Path(__file__).parents[3]
PR_SET_PDEATHSIG = 1
LAST_SECONDS = 10.0  # a process has this long to end after SIGTERM; then it is killed
LIMIT = "512MiB"
# Ways to start a program -> options of `mucudnn run`, none if it starts without mucudnn.
STOCK, DROP_IN = "stock", f"mucudnn run --workspace {LIMIT}"
LAUNCHES = {STOCK: (), DROP_IN: ("--workspace", LIMIT, "--online")}
PREFIX = "mucudnn: "  # the prefix of the drop-in's messages
LEAST_SECONDS = 30.0  # a program may take this long, even if the part has less time left


class ProgramError(MucudnnError):
    """The failure or the timeout of a measured program, which does not affect later measurements."""


def run_captured(
    command: Sequence[str], seconds: float, environment: dict[str, str] | None = None
) -> CompletedProcess[str]:
    """Run a command, and return its exit code and output.

    Raises ProgramError if it takes longer than `seconds`, and kills its whole session.
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


def call(run: Run, launch: str, module: str, *arguments: str, share: str = "") -> dict[str, Any]:
    """Run a program. Return the JSON of its last line, with the drop-in's messages as `drop_in`.

    `launch` is a key of LAUNCHES. Programs with the same `share` have one cache, so that the drop-in measures
    a kernel for the first of them only. Raises ProgramError if the program fails or has no time left.
    """
    command = [sys.executable, "-m", module, *arguments, "--device", run.setting.device]
    if LAUNCHES[launch]:
        command = [sys.executable, "-m", "mucudnn", "run", *LAUNCHES[launch], "--", *command]
    program = run_captured(command, max(run.seconds_left, LEAST_SECONDS), _environment(run, share))
    if program.returncode:
        raise ProgramError(f"exit code {program.returncode}: {_cause(program.stderr)}")
    answer: dict[str, Any] = json.loads(program.stdout.splitlines()[-1])
    lines = program.stderr.splitlines()
    messages = [line.removeprefix(PREFIX) for line in lines if line.startswith(PREFIX)]
    return {**answer, "drop_in": messages}


def _environment(run: Run, share: str) -> dict[str, str]:
    ours = {setting.variable for setting in SETTINGS if setting is not LIBRARY}
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= {CACHE.variable: str(run.store.programs_cache(share).absolute()), LOG.variable: "info"}
    if run.setting.engine == "host":
        environment[LIBRARY.variable] = "host"
    return environment


def _cause(messages: str) -> str:
    """Return the line of a traceback that names the error, else the last line that is not the drop-in's."""
    lines = [line for line in messages.strip().splitlines() if not line.startswith(PREFIX)]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return (errors or lines or [""])[-1]
