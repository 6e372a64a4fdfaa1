"""Launching the measured programs, which know nothing of mucudnn."""

from __future__ import annotations

import json
import os
import re
import sys
from typing import Any

from bench.lib.processes import ProgramError, run_captured
from bench.suites.gpu.run import Run
from mucudnn.settings import CACHE, LIBRARY, LOG, SETTINGS

LIMIT = "512MiB"
# Ways to start a program -> options of `mucudnn run`, none if it starts without mucudnn.
STOCK, DROP_IN = "stock", f"mucudnn run --workspace {LIMIT}"
LAUNCHES = {STOCK: (), DROP_IN: ("--workspace", LIMIT, "--online")}
PREFIX = "mucudnn: "  # the prefix of the drop-in's messages
LEAST_SECONDS = 30.0  # a program may take this long, even if the part has less time left


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
