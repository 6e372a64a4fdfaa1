"""No test module imports another: helper modules hold the shared code, so that each test can move alone."""

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]
MODULES = {path.stem for path in TESTS.rglob("test_*.py")}
# Tests hold programs in strings, and these import too. So the check searches the text, not the syntax tree.
IMPORT = re.compile(r"^\s*(?:from|import)\s+(?:[\w.]*\.)?(test_\w+)", re.MULTILINE)


def imported_tests(text: str) -> list[str]:
    return [name for name in IMPORT.findall(text) if name in MODULES]


def test_no_test_module_is_imported() -> None:
    wrong = [
        f"{path.relative_to(TESTS)} imports {name}"
        for path in sorted(TESTS.rglob("*.py"))
        for name in imported_tests(path.read_text())
    ]
    assert wrong == []
