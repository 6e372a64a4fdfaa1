"""Commands print lines that fit a terminal of 80 columns and end between words."""

import os
import pty
import re
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from terminals import read_terminal

COLUMNS = 80
# Colours and moves of the cursor, which a terminal obeys and does not show.
CONTROL = re.compile(r"\x1b\[[\d;?]*[A-Za-z]")


def run_on_terminal(*arguments: str, **changes: str) -> tuple[int, list[str]]:
    """Run a command with a terminal as its output. Return the exit code and the lines, without progress."""
    ours, theirs = pty.openpty()
    termios.tcsetwinsize(theirs, (50, COLUMNS))
    environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
    command = [sys.executable, "-m", "mucudnn", *arguments]
    with subprocess.Popen(
        command, stdout=theirs, stderr=theirs, env={**environment, "TERM": "xterm", **changes}
    ) as program:
        os.close(theirs)
        shown = read_terminal(ours)
    lines = CONTROL.sub("", shown.decode()).replace("\r\n", "\n").split("\n")
    return program.returncode, [line.rpartition("\r")[2] for line in lines]


def broken(lines: list[str]) -> list[str]:
    """Return the lines that a terminal breaks: not long paths, and not a command, which a user copies."""
    return [
        line for line in lines if len(line) > COLUMNS and "/" not in line and not line.startswith("Next: ")
    ]


@pytest.mark.usefixtures("cache_path")
def test_the_doctor_breaks_no_word() -> None:
    code, lines = run_on_terminal("doctor", MUCUDNN_LIBRARY="host")
    assert code == 0
    assert broken(lines) == []
    assert "works: a child process under mucudnn run" in lines


@pytest.mark.usefixtures("cache_path")
def test_what_is_measured_is_said_in_lines_of_whole_words() -> None:
    code, lines = run_on_terminal("optimize", "mb4_ic8ih14_oc8_kh3_ph1", "--inference", "--engine", "host")
    assert code == 0
    assert broken(lines) == []
    measuring = next(index for index, line in enumerate(lines) if line.startswith("Measuring up to"))
    said = " ".join(lines[measuring : measuring + 3])
    assert re.search(r"for .*kh3.* forward, in about .* of memory", said)


def test_an_error_is_said_in_lines_of_whole_words(tmp_path: Path) -> None:
    file = tmp_path / "a file whose name has many words and no end that a reader would see soon.plan"
    file.write_text("no plan\n")
    code, lines = run_on_terminal("optimize", "mb4_ic8ih14_oc8_kh3_ph1", "--inference", "--output", str(file))
    assert code == 2
    assert len(lines) > 2
    assert broken(lines) == []
