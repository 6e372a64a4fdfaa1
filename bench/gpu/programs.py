"""Programs that know nothing of mucudnn, each in a process of its own: alone, or under the drop-in."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

from bench.gpu.processes import ProgramError, finished
from bench.gpu.run import Run
from mucudnn.settings import CACHE, LIBRARY, LOG, SETTINGS

LIMIT = "512MiB"
HOWS = {"stock": (), f"mucudnn run --workspace {LIMIT}": ("--workspace", LIMIT, "--online")}
SAID = "mucudnn: "
LEAST_SECONDS = 30.0  # that a program which was begun may take


def call(run: Run, how: str, module: str, *arguments: str, share: str = "") -> dict[str, Any]:
    """The JSON that a program prints on its last line, and `drop_in`, all that the drop-in says of it.

    What the drop-in measures serves later programs of the same `share`.

    Raises ProgramError where it fails or takes longer than there is time.
    """
    command = [sys.executable, "-m", module, *arguments, "--device", run.setting.device]
    if HOWS[how]:
        command = [sys.executable, "-m", "mucudnn", "run", *HOWS[how], "--", *command]
    program = finished(command, max(run.seconds_left, LEAST_SECONDS), _environment(run, share))
    if program.returncode:
        raise ProgramError(f"exit code {program.returncode}: {_cause(program.stderr)}")
    answer: dict[str, Any] = json.loads(program.stdout.splitlines()[-1])
    said = [line.removeprefix(SAID) for line in program.stderr.splitlines() if line.startswith(SAID)]
    return {**answer, "drop_in": said}


def _environment(run: Run, share: str) -> dict[str, str]:
    ours = {setting.variable for setting in SETTINGS if setting is not LIBRARY}
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= {CACHE.variable: str(run.store.programs_cache(share).absolute()), LOG.variable: "info"}
    if run.setting.engine == "host":
        environment[LIBRARY.variable] = "host"
    return environment


def _cause(messages: str) -> str:
    """The last line of a traceback's error, which may have more lines than one; else the last line."""
    lines = [line for line in messages.strip().splitlines() if not line.startswith(SAID)]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Exception|Interrupt)\b", line)]
    return (errors or lines or [""])[-1]
