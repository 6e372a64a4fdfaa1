"""Commands of mucudnn that a test runs in its own process."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mucudnn.cli import main
from mucudnn.plans.plan import Plan, write_plan
from mucudnn.solver import Configuration

Capture = pytest.CaptureFixture[str]


def exit_code(arguments: Sequence[str]) -> int:
    """Run a command, whose arguments argparse may refuse by SystemExit."""
    try:
        return main(arguments)
    except SystemExit as exit_:
        return int(exit_.code or 0)


def output_of(capsys: Capture, arguments: Sequence[str], code: int = 0) -> str:
    """Run a command that ends with this exit code. Return its stdout."""
    assert exit_code(arguments) == code
    return capsys.readouterr().out


def error_of(capsys: Capture, arguments: Sequence[str], code: int) -> str:
    """Run a command that ends with this exit code. Return its stderr."""
    assert exit_code(arguments) == code
    return capsys.readouterr().err


def json_of(capsys: Capture, arguments: Sequence[str], code: int = 0) -> Any:
    """Run a command with --json that ends with this exit code. Return the parsed JSON."""
    return json.loads(output_of(capsys, arguments, code))


def failure_of(capsys: Capture, *arguments: str) -> tuple[int, str]:
    """Run a command that fails. Return its exit code and the only line that it prints."""
    code = exit_code(arguments)
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("mucudnn")
    return code, line


def lengthened(plan: Plan, factor: float) -> Plan:
    """Return a plan with the same choices, all of whose predicted times are multiplied."""

    def longer(configuration: Configuration) -> Configuration:
        parts = (replace(part, time_ms=factor * part.time_ms) for part in configuration.parts)
        return Configuration(tuple(parts))

    kernels = (
        replace(k, chosen=longer(k.chosen), desirable=tuple(map(longer, k.desirable))) for k in plan.kernels
    )
    return replace(plan, kernels=tuple(kernels))


def predict_longer(path: Path) -> None:
    """Multiply the times in a plan's file, so that `plan verify` finds nothing slower on a busy machine."""
    write_plan(lengthened(Plan.read(path), 1e6), path)
