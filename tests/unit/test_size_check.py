"""The check of size counts what has to be understood, and fails above a ceiling."""

import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "size"

pytestmark = pytest.mark.skipif(not SCRIPT.exists(), reason="a source distribution comes without .ci")


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
