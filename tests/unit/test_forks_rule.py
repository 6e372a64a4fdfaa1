"""An import that a call makes cannot hang a child of fork().

In the child the thread that imports does not exist, and the module's import never ends. So a fork waits for
the imports of all functions. The command line's functions are excepted: a command is a process of its own.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MODULES = [
    module
    for package in ("mucudnn", "solver")
    for module in sorted((ROOT / package).rglob("*.py"))
    if not module.is_relative_to(ROOT / "mucudnn/cli")
]


def unguarded(tree: ast.AST, in_function: bool = False) -> Iterator[int]:
    """Yield the lines of the imports in functions that no fork waits for."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.With) and any("no_fork" in ast.unparse(item) for item in node.items):
            continue
        if in_function and isinstance(node, ast.Import | ast.ImportFrom):
            yield node.lineno
        yield from unguarded(node, in_function or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


@pytest.mark.parametrize("module", MODULES, ids=lambda module: str(module.relative_to(ROOT)))
def test_a_fork_waits_for_the_imports_in_functions(module: Path) -> None:
    assert not list(unguarded(ast.parse(module.read_text())))


def test_an_import_without_the_lock_is_detected() -> None:
    tree = ast.parse("def f():\n    import a\n    with no_fork:\n        import b\n")
    assert list(unguarded(tree)) == [2]
