"""Every tutorial runs as it stands, and prints what it shows.

The blocks of a page run in their order in an empty folder: `python` with a title is a file, `sh` runs in one
shell, and `text` is the output of the block before it, where a number stands for any number.
"""

import re
from importlib.util import find_spec
from pathlib import Path

import pytest
from needs_torch import torch  # noqa: F401 (tutorials need PyTorch)
from pages import run_commands
from programs import is_missing

FOLDER = Path(__file__).parents[2] / "docs" / "tutorials"
BLOCK = re.compile(r'^```(sh|text|python title="([\w.]+)")\n(.*?)^```$', re.MULTILINE | re.DOTALL)
IMPORT = re.compile(r"^(?:import|from) (\w+)", re.MULTILINE)
NUMBER = re.compile(r"\d+(\.\d+)?(e[-+]\d+)?")


def masked(text: str) -> list[str]:
    """Return the lines with one mark for each number, and one space for several."""
    return [" ".join(NUMBER.sub("#", line).split()) for line in text.splitlines() if line.strip()]


@pytest.mark.parametrize("page", sorted(FOLDER.glob("*.md")), ids=lambda page: page.stem)
def test_a_tutorial_runs_and_prints_what_it_shows(page: Path, tmp_path: Path) -> None:
    text = page.read_text("utf-8")
    for package in {"monai", "pytorch_lightning", "accelerate"} & set(IMPORT.findall(text)):
        # Not imported, because a torchvision for another PyTorch may be on this process's path alone.
        if find_spec(package) is None:
            is_missing(f"needs {package}: pip install {package}")
    script: list[str] = []
    shown: dict[int, str] = {}
    for kind, title, content in BLOCK.findall(text):
        if title:
            (tmp_path / title).write_text(content, "utf-8")
        elif kind == "text":
            shown[len(script) - 1] = content
        else:
            lines = (line for line in content.splitlines() if not line.startswith("pip install"))
            script.append("\n".join(lines))
    assert script, "the page has nothing to run"
    outputs = run_commands(script, tmp_path, PYTHONPATH="", PYTHONWARNINGS="ignore")
    for block, expected in shown.items():
        assert masked(outputs[block]) == masked(expected), outputs[block]
