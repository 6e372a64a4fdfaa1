"""Processes of torch_worker, alone and under `mucudnn run`, with the files that they leave."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch_settings import WORKSPACE, Group
from torch_worker import OUTCOMES

ROOT = Path(__file__).parents[2]
GRACE = 5.0  # seconds that a running setting gets after the time limit
STALL = 70.0  # seconds without output after which a setting counts as hanging


@dataclass(frozen=True)
class Ended:
    """A worker that has ended: exit code, outcomes and stderr."""

    exit_code: int | None  # negative for a signal, None if the time was over
    stderr: str
    machine: dict[str, Any]
    outcomes: dict[str, dict[str, Any]]  # keyed by setting
    begun: str | None  # the last setting that it began

    def last_lines(self) -> str:
        """Return the end of stderr, which shows why a worker failed."""
        return "\n".join(self.stderr.splitlines()[-20:])

    def report(self) -> dict[str, Any]:
        """Return a summary of the process for the report, with the lines of the drop-in."""
        said = [line for line in self.stderr.splitlines() if line.startswith("mucudnn: ")]
        summaries = [line for line in said if " convolutions divided" in line]
        return {
            "exit_code": "the time was over" if self.exit_code is None else self.exit_code,
            "last_setting": self.begun,
            "summary": summaries[-1] if summaries else None,
            "measured": sum(
                int(match[1]) for line in said if (match := re.search(r"measuring (?:up to )?(\d+)", line))
            ),
            "warnings": [
                line for line in said if re.search("not used|passed on|nothing fits|undivided", line)
            ],
            "stderr": "" if self.exit_code == 0 else self.last_lines(),
        }


class Worker:
    """A starter of workers, with files in `scratch`, in a folder for each kind: `plain` and `mucudnn`."""

    def __init__(self, device: str, scratch: Path) -> None:
        self._device, self._scratch = device, scratch

    def folder(self, kind: str) -> Path:
        """Return the folder of a kind, which holds outcomes and gradients."""
        folder = self._scratch / kind
        folder.mkdir(exist_ok=True)
        return folder

    def run(self, group: Group, kind: str, names: Sequence[str], seconds: float) -> Ended:
        """Run one process for these settings. Kill it a little after the seconds are over."""
        folder = self.folder(kind)
        outcomes = folder / OUTCOMES
        outcomes.unlink(missing_ok=True)
        worker = str(Path(__file__).with_name("torch_worker.py"))
        command = [sys.executable, worker, str(folder), str(seconds), self._device, *names]
        if kind == "mucudnn":
            command = [sys.executable, "-m", "mucudnn", "run", f"--workspace={WORKSPACE}", "--", *command]
        with (folder / "stderr").open("w+", errors="replace") as stderr:
            # The worker leads a process group, because compilers are processes too and must end with it.
            process = subprocess.Popen(
                command, env=self._environment(group), stdout=stderr, stderr=stderr, start_new_session=True
            )
            try:
                is_over = _wait(process, seconds + GRACE, outcomes)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            stderr.seek(0)
            return _read_outcomes(None if is_over else process.returncode, stderr.read(), outcomes)

    def _environment(self, group: Group) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MUCUDNN_")}
        path = f"{ROOT}:{kept.get('PYTHONPATH', '')}".rstrip(":")  # bench has the networks
        cache = str(self._scratch / "cache.sqlite")
        return {
            **kept,
            "PYTHONPATH": path,
            "MUCUDNN_LOG": "info",
            "MUCUDNN_CACHE": cache,
            **dict(group.environment),
        }


def _wait(process: subprocess.Popen[bytes], seconds: float, file: Path) -> bool:
    """Wait until the process ends or hangs. Return True if the seconds are over before that."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            process.wait(1)
            return False
        except subprocess.TimeoutExpired:
            if file.exists() and time.time() - file.stat().st_mtime > STALL:
                return False
    return True


def _read_outcomes(code: int | None, stderr: str, file: Path) -> Ended:
    machine: dict[str, Any] = {}
    outcomes: dict[str, dict[str, Any]] = {}
    begun: str | None = None
    for text in file.read_text().splitlines() if file.exists() else ():
        line = json.loads(text)
        machine, begun = line.get("machine", machine), line.get("begun", begun)
        if "done" in line:
            outcomes[line.pop("done")] = line
    return Ended(code, stderr, machine, outcomes, begun)
