"""The guides' commands and Python run from top to bottom, as tutorials do, and modelled tables are as shown.

Elsewhere run the examples that need several ranks or a GPU (ON_RANKS, ON_A_DEVICE).
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from needs_torch import torch
from pages import DOCS, ON_A_DEVICE, ON_RANKS, PYTHON, SHELL, blocks_of, run_commands, run_python, runnable
from programs import ROOT

PAGES = sorted(
    str(page.relative_to(DOCS)) for folder in (".", "reference") for page in (DOCS / folder).glob("*.md")
)
KINDS = {*PYTHON, *SHELL, "json", "text"}
MODELLED = ("mucudnn memory", "mucudnn parallel place", "mucudnn parallel project")  # depend on no machine


def readers_names(page: str) -> dict[str, Any]:
    """Return what the reader of a page has."""
    x = torch.randn(4, 3, 16, 16)
    names = {"model": torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.ReLU()), "x": x}
    if page == "index.md":  # its first example is about arrays
        names |= {"x": x.numpy(), "w": np.ones((8, 3, 3, 3), "f4")}
    return names


def test_each_block_names_its_language_so_that_an_example_runs() -> None:
    for page in set(PAGES) - {"commands.md"}:  # test_commands_page.py parses its examples
        assert {block.kind for block in blocks_of(page)} <= KINDS, page


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page not in (*ON_RANKS, *ON_A_DEVICE) and any(runnable(page, *PYTHON))],
)
def test_the_python_of_a_guide_runs(page: str, cache_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cache_path.parent)
    if page == "reference/network.md":  # shows the file that it reads
        Path("small.network").write_text(blocks_of(page)[0].text, "utf-8")
    run_python(page, readers_names(page))


@pytest.mark.parametrize("page", [page for page in PAGES if any(runnable(page, *SHELL))])
def test_the_commands_of_a_guide_run(page: str, tmp_path: Path, search_path: str) -> None:
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    (tmp_path / "train.py").symlink_to(ROOT / "examples" / "one_convolution.py")  # the reader's program
    script: list[str] = []
    shown: dict[int, str] = {}
    for block in runnable(page, *SHELL):
        for command, output in block.commands:
            if command.startswith("cat "):  # shows a file that the reader has
                (tmp_path / command.removeprefix("cat ")).write_text(output, "utf-8")
            if command.startswith(MODELLED):
                shown[len(script)] = output
            script.append(command)
    outputs = run_commands(script, tmp_path, LD_LIBRARY_PATH=search_path, MUCUDNN_BUDGET="1s")
    for number, output in shown.items():
        assert [line.rstrip() for line in outputs[number].splitlines()] == output.splitlines()
