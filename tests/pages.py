"""The code blocks of the pages, and how their examples run.

`python`, `pycon` (lines after >>>), `sh` and `console` (lines after $) are examples. A page runs from top to
bottom, in an empty folder. A comment in front of a block says why it does not run: <!-- not run: REASON -->.
"""

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from programs import HANGS

DOCS = Path(__file__).parents[1] / "docs"
# Their Python needs a GPU or several ranks: tests/gpu and tests/distributed run it.
ON_A_DEVICE = ("memory.md", "memory-running.md")
ON_RANKS = ("pipelines.md", "spatial.md")
_END = "end of block"
PYTHON, SHELL = ("python", "pycon"), ("sh", "console")
_PROMPTS = {"console": "$ ", "pycon": ">>> "}
_BLOCK = re.compile(
    r"^(?:<!-- not run: (?P<reason>[^>]+) -->\n\n)?```(?P<kind>\w*)[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A code block: its language, its lines, and why it does not run, if it does not."""

    kind: str
    text: str
    reason: str | None

    @property
    def commands(self) -> list[tuple[str, str]]:
        """The lines that are typed, each with the output that is shown below it."""
        prompt = _PROMPTS.get(self.kind)
        if prompt is None:
            return [(line, "") for line in self.text.splitlines()]
        pairs = (part.partition("\n") for part in ("\n" + self.text).split(f"\n{prompt}")[1:])
        return [(command, output.rstrip("\n") + "\n") for command, _, output in pairs]


def blocks_of(page: str) -> list[Block]:
    """Return the code blocks of a page in their order."""
    text = (DOCS / page).read_text("utf-8")
    return [Block(match["kind"], match["text"], match["reason"]) for match in _BLOCK.finditer(text)]


def runnable(page: str, *kinds: str) -> Iterator[Block]:
    """Yield the blocks of these languages that run."""
    yield from (block for block in blocks_of(page) if block.kind in kinds and block.reason is None)


def run_python(page: str, names: dict[str, Any]) -> None:
    """Run the Python of a page, in which the reader has already defined some names."""
    for block in runnable(page, *PYTHON):
        lines = "\n".join(command for command, _ in block.commands)
        exec(compile(lines, f"docs/{page}", "exec"), names)


def run_commands(blocks: Sequence[str], folder: Path, **variables: str) -> list[str]:
    """Run blocks of commands in one shell, in a folder with a cache of its own. Return the output of each."""
    environment = {
        **os.environ,
        "MUCUDNN_CACHE": str(folder / "cache.sqlite"),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        **variables,
    }
    script = "\n".join(f"{block}\necho {_END}" for block in blocks)
    ended = subprocess.run(
        ["bash", "-eu", "-o", "pipefail", "-c", script], cwd=folder, env=environment, text=True,
        capture_output=True, timeout=HANGS, check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout.split(f"{_END}\n")
