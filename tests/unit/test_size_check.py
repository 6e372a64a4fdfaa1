"""The check of size counts what has to be understood, and fails above a ceiling."""

import runpy
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "size"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="a source distribution comes without .ci")


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


def test_comments_docstrings_and_layout_do_not_count_in_python(script: dict[str, Any]) -> None:
    plain = "def double(x):\n    return 2 * x\n"
    described = (
        'def double(x):\n    """Return twice x."""\n\n    # Twice.\n    return (\n        2 * x\n    )\n'
    )
    assert script["count_python"](plain) == 10
    assert script["count_python"](described) == 12  # the two parentheses


def test_comments_do_not_count_in_cpp_and_a_string_is_a_token(script: dict[str, Any]) -> None:
    assert script["count_native"]('puts("// no comment"); // a comment\n/* another\n one */') == 5
    assert script["count_native"]("a <<= 0x1'0; std::b->c") == 10


@pytest.mark.parametrize(("ceiling", "code"), [(5, 0), (4, 1)])
def test_the_check_fails_above_a_ceiling(tmp_path: Path, ceiling: int, code: int) -> None:
    (tmp_path / ".ci").mkdir()
    (tmp_path / "solver").mkdir()
    shutil.copy(SCRIPT, tmp_path / ".ci")
    (tmp_path / "pyproject.toml").write_text(f"[tool.ceilings]\nproduct = {ceiling}\n")
    (tmp_path / "solver" / "sum.py").write_text("x = 1 + 2  # three\n")
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    subprocess.run(["git", "add", "."], cwd=tmp_path, check=True)
    check = subprocess.run([tmp_path / ".ci" / "size"], capture_output=True, text=True)
    assert check.returncode == code
    assert check.stdout == f"product: 5 of {ceiling} tokens\n"
    assert ("1 tokens more than its ceiling" in check.stderr) == (code == 1)
