"""Commands of mucudnn that a test runs in its own process."""

import json
from collections.abc import Sequence
from typing import Any

import pytest

from mucudnn.cli import main

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
