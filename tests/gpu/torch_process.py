"""Processes of torch_worker, alone and under `mucudnn run`, and what they left behind."""

from __future__ import annotations

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
GRACE = 5.0  # seconds for a setting that is under way when the time is over
STALL = 70.0  # seconds after which a setting is taken to hang


@dataclass(frozen=True)
class Ended:
    """How a worker ended, and what it did before."""

    exit_code: int | None  # minus a signal; None where the time was over
    stderr: str
    machine: dict[str, Any]
    outcomes: dict[str, dict[str, Any]]  # by setting
    begun: str | None  # the last setting that it took up

    def last_lines(self) -> str:
        """Where to look for why it failed."""
        return "\n".join(self.stderr.splitlines()[-20:])

    def report(self) -> dict[str, Any]:
        """What the drop-in said of the process, too."""
        said = [line for line in self.stderr.splitlines() if line.startswith("mucudnn: ")]
        summaries = [line for line in said if " convolutions divided" in line]
        return {
            "exit_code": "the time was over" if self.exit_code is None else self.exit_code,
            "last_setting": self.begun,
            "summary": summaries[-1] if summaries else None,
            "measured": sum(int(found[1]) for line in said if (found := re.search(r"measuring (\d+)", line))),
            "warnings": [
                line for line in said if re.search("not used|passed on|nothing fits|undivided", line)
            ],
            "stderr": "" if self.exit_code == 0 else self.last_lines(),
        }


class Worker:
    """Starts workers whose files are in `scratch`, a folder for each kind: `plain` and `mucudnn`."""

    def __init__(self, device: str, scratch: Path) -> None:
        self._device, self._scratch = device, scratch

    def folder(self, kind: str) -> Path:
        """Of the gradients that are kept."""
        folder = self._scratch / kind
        folder.mkdir(exist_ok=True)
        return folder

    def run(self, group: Group, kind: str, names: Sequence[str], seconds: float) -> Ended:
        """One process for these settings, which is killed a little after the seconds are over."""
        folder = self.folder(kind)
        outcomes = folder / OUTCOMES
        outcomes.unlink(missing_ok=True)
        worker = str(Path(__file__).with_name("torch_worker.py"))
        command = [sys.executable, worker, str(folder), str(seconds), self._device, *names]
        if kind == "mucudnn":
            command = [sys.executable, "-m", "mucudnn", "run", f"--workspace={WORKSPACE}", "--", *command]
        with (folder / "stderr").open("w+", errors="replace") as stderr:
            # A group of processes, because compilers are such, and must end with it.
            process = subprocess.Popen(
                command,
                env=self._environment(group),
                stdout=stderr,
                stderr=stderr,
                start_new_session=True,
            )
            try:
                is_over = _wait(process, seconds + GRACE, outcomes)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()
            stderr.seek(0)
            return _ended(None if is_over else process.returncode, stderr.read(), outcomes)

    def _environment(self, group: Group) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MUCUDNN_")}
        path = f"{ROOT}:{kept.get('PYTHONPATH', '')}".rstrip(":")  # of the networks, which bench has
        cache = str(self._scratch / "cache.sqlite")
        return {
            **kept,
            "PYTHONPATH": path,
            "MUCUDNN_LOG": "info",
            "MUCUDNN_CACHE": cache,
            **dict(group.environment),
        }


def _wait(process: subprocess.Popen[bytes], seconds: float, file: Path) -> bool:
    """Until it ends, or writes nothing to the file for too long; whether it was the seconds that ended."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            process.wait(1)
            return False
        except subprocess.TimeoutExpired:
            if file.exists() and time.time() - file.stat().st_mtime > STALL:
                return False
    return True


def _ended(code: int | None, stderr: str, file: Path) -> Ended:
    machine: dict[str, Any] = {}
    outcomes: dict[str, dict[str, Any]] = {}
    begun: str | None = None
    for text in file.read_text().splitlines() if file.exists() else ():
        line = json.loads(text)
        machine, begun = line.get("machine", machine), line.get("begun", begun)
        if "done" in line:
            outcomes[line.pop("done")] = line
    return Ended(code, stderr, machine, outcomes, begun)
