"""The progress that the Python functions show while they measure."""

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from terminals import read_terminal

PROGRAM = """
import numpy as np, mucudnn
x, w = np.ones((4, 3, 16, 16), np.float32), np.ones((8, 3, 3, 3), np.float32)
print(mucudnn.convolution_forward(x, w, workspace="1MiB").shape)
"""


def run_on_terminal(cache: Path, **settings: str) -> tuple[str, str]:
    """Run PROGRAM with a terminal as stderr. Return its stdout, and the text on the terminal."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "MUCUDNN_CACHE": str(cache), "TERM": "xterm", **settings}
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, stderr=theirs, env=environment
    ) as program:
        os.close(theirs)
        shown = read_terminal(ours)
        assert program.stdout is not None
        printed = program.stdout.read().decode()
    assert program.returncode == 0, shown
    return printed, shown.decode()


def test_a_terminal_shows_progress_while_a_call_measures(tmp_path: Path) -> None:
    printed, shown = run_on_terminal(tmp_path / "cache.sqlite")
    assert printed == "(4, 8, 14, 14)\n"
    assert "Measuring" in shown
    assert shown.endswith("\x1b[2K")  # the bar is erased at the end
    printed, shown = run_on_terminal(tmp_path / "cache.sqlite")
    assert (printed, shown) == ("(4, 8, 14, 14)\n", "")  # all is measured


def test_messages_that_are_off_have_no_progress(tmp_path: Path) -> None:
    assert run_on_terminal(tmp_path / "cache.sqlite", MUCUDNN_LOG="off")[1] == ""


@pytest.mark.parametrize("log", ["off", "warning"])
def test_a_program_without_terminal_prints_nothing(log: str, cache_path: Path) -> None:
    environment = {**os.environ, "MUCUDNN_CACHE": str(cache_path), "MUCUDNN_LOG": log}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("(4, 8, 14, 14)\n", "")
