"""Python on the pages imports what it uses, so that an example runs where it is copied."""

import ast
import builtins
import re
from pathlib import Path
from textwrap import dedent

import pytest

TOP = Path(__file__).parents[2]
PAGES = [TOP / "README.md", *sorted((TOP / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^( *)```python[^\n]*\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
# Readers bring a model, its data, an optimizer and a loss, and stages.
READERS = {
    "accumulated", "batches", "criterion", "example_input", "folder", "images", "inputs", "loss", "model",
    "n", "optimizer", "scheduler", "stages", "target", "targets", "volume", "w", "x",
}  # fmt: skip


def bound_names(tree: ast.AST) -> set[str]:
    """Return the names that a program imports, defines or assigns, anywhere."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.Import() | ast.ImportFrom():
                names |= {(name.asname or name.name).partition(".")[0] for name in node.names}
            case ast.FunctionDef() | ast.ClassDef():
                names.add(node.name)
            case ast.arg():
                names.add(node.arg)
            case ast.Name(ctx=ast.Store()):
                names.add(node.id)
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(TOP)))
def test_only_what_readers_have_is_not_defined_on_the_page(page: Path) -> None:
    known = {*dir(builtins), *READERS}
    for _, block in BLOCK.findall(page.read_text("utf-8")):
        tree = ast.parse(dedent(block))
        known |= bound_names(tree)
        loaded = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        assert loaded <= known, f"{loaded - known} in: {block}"
