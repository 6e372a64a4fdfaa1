"""Helpers that run torch_convolutions, alone and under mucudnn, and check its results."""

import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_engine import DEVICE
from programs import environment

PROGRAM = Path(__file__).with_name("torch_convolutions.py")
LIMIT = 2**23  # bytes of workspace; transposed copies of eight images need more

SECONDS = 120  # a process is killed after this; its finished cases count


@dataclass(frozen=True)
class Run:
    """The outcomes of a process."""

    cases: dict[str, dict[str, Any]]
    code: int
    stderr: str

    @property
    def divided(self) -> int:
        """The number of divided calls in the drop-in's last line."""
        return self._summary[0]

    @property
    def calls(self) -> int:
        """The number of all convolution calls in the drop-in's last line."""
        return self._summary[1]

    @property
    def tiled(self) -> int:
        """The number of calls in tiles in the drop-in's last line."""
        return sum(map(int, re.findall(r"convolutions divided, (\d+) of them in tiles", self.stderr)[-1:]))

    @property
    def workspace(self) -> float:
        """The most bytes of workspace of a divided call in the drop-in's last line, rounded as it is."""
        sizes = re.findall(r"workspace at most ([\d.]+) (bytes|KiB|MiB|GiB)", self.stderr)
        units = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
        return max((float(number) * units[unit] for number, unit in sizes[-1:]), default=0.0)

    @property
    def _summary(self) -> tuple[int, int]:
        counts = re.findall(r"^mucudnn: (\d+) of (\d+) convolutions divided", self.stderr, re.MULTILINE)
        return (int(counts[-1][0]), int(counts[-1][1])) if counts else (0, 0)

    @property
    def measured(self) -> int:
        """The number of measurements."""
        return sum(
            map(int, re.findall(r"^mucudnn: measuring (?:up to )?(\d+) times", self.stderr, re.MULTILINE))
        )

    def outcome(self, case: str) -> dict[str, Any]:
        """Return the outcome of a case. Fail if the case did not run or failed."""
        assert case in self.cases, f"ended with {self.code}: {self.stderr[-3000:]}"
        outcome = self.cases[case]
        assert "error" not in outcome, outcome["error"] + self.stderr[-3000:]
        return outcome


def run_alone(*cases: str, program: Path = PROGRAM, **variables: str) -> Run:
    """Run a program's cases in PyTorch without mucudnn."""
    return _run([sys.executable, str(program), DEVICE, *cases], variables)


def run_under_mucudnn(
    *cases: str,
    program: Path = PROGRAM,
    flags: tuple[str, ...] = ("--workspace", str(LIMIT)),
    **variables: str,
) -> Run:
    """Run a program's cases in PyTorch under `mucudnn run`."""
    command = [sys.executable, str(program), DEVICE, *cases]
    return _run([sys.executable, "-m", "mucudnn", "run", *flags, "--", *command], variables)


def _run(command: list[str], variables: dict[str, str]) -> Run:
    process = subprocess.Popen(
        command,
        env=environment(**{"MUCUDNN_LOG": "info", **variables}),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        stdout, stderr = process.communicate()
    outcomes = [json.loads(line) for line in stdout.splitlines() if line.startswith('{"case"')]
    return Run({outcome["case"]: outcome for outcome in outcomes}, process.returncode, stderr)


def assert_within_contract(ours: dict[str, Any], own: dict[str, Any]) -> None:
    """Check ‖y − y64‖ ≤ 2‖u − y64‖ + 2ε‖ |x| ∗ |w| ‖, with u the result of PyTorch alone."""
    assert ours["finite"]
    for error, own_error, scale in zip(ours["errors"], own["errors"], own["scales"], strict=True):
        assert error <= 2 * own_error + 2 * own["epsilon"] * scale
