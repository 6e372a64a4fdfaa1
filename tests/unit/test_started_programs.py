"""Tests start hundreds of programs. None imports hypothesis or pytest: that would take half of the start."""

import os
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
PROGRAMS = {
    "native": "shim_client",
    "drop_in": "client_process, fault_process",
    "integration": "interrupted_process, planning_program, shim_faults",
}


def test_a_program_that_tests_start_imports_neither_hypothesis_nor_pytest() -> None:
    modules = ", ".join(PROGRAMS.values())
    program = f"import sys, {modules}; print({{'hypothesis', 'pytest'}} & {{*sys.modules}})"
    path = os.pathsep.join(str(TESTS / folder) for folder in PROGRAMS)
    done = subprocess.run(
        [sys.executable, "-c", program], env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("set()\n", "")
