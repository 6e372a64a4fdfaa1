"""Programs that know nothing of mucudnn, each in a process of its own: alone, or under the drop-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from bench.gpu.run import Run
from mucudnn.errors import MucudnnError
from mucudnn.settings import CACHE, LIBRARY, LOG, SETTINGS

LIMIT = "512MiB"
HOWS = {"stock": (), f"mucudnn run --workspace {LIMIT}": ("--workspace", LIMIT, "--online")}
LEAST_SECONDS = 30.0  # that a program which was begun may take


def call(run: Run, how: str, module: str, *arguments: str) -> dict[str, Any]:
    """The JSON that a program prints on its last line, and `drop_in`, what the drop-in says of it.

    Raises MucudnnError where it fails or takes longer than there is time.
    """
    command = [sys.executable, "-m", module, *arguments, "--device", run.setting.device]
    if HOWS[how]:
        command = [sys.executable, "-m", "mucudnn", "run", *HOWS[how], "--", *command]
    seconds = max(run.seconds_left, LEAST_SECONDS)
    try:
        finished = subprocess.run(
            command, env=_environment(run), cwd=Path(__file__).parents[2], capture_output=True, text=True,
            check=False, timeout=seconds,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise MucudnnError(f"it was not done after {seconds:.0f} s") from None
    if finished.returncode:
        last = (finished.stderr.strip().splitlines() or [""])[-1]
        raise MucudnnError(f"exit code {finished.returncode}: {last}")
    answer: dict[str, Any] = json.loads(finished.stdout.splitlines()[-1])
    said = [line for line in finished.stderr.splitlines() if line.startswith("mucudnn: ")]
    return {**answer, "drop_in": said[-1].removeprefix("mucudnn: ") if said else ""}


def _environment(run: Run) -> dict[str, str]:
    ours = {setting.variable for setting in SETTINGS if setting is not LIBRARY}
    environment = {name: value for name, value in os.environ.items() if name not in ours}
    environment |= {CACHE.variable: str(run.programs_cache.absolute()), LOG.variable: "info"}
    if run.setting.engine == "host":
        environment[LIBRARY.variable] = "host"
    run.programs_cache.parent.mkdir(parents=True, exist_ok=True)
    return environment
