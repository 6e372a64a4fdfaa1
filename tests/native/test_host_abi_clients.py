"""Programs open the host engine by its path: with any number of threads, and beside another cuDNN."""

import os
import sys
from pathlib import Path

import host_abi as abi
import pytest
from programs import compile_c, preload, run

from mucudnn import _native

OPENS = """
import ctypes
from host_forward import large_forward
assert large_forward().any()
print("ok", flush=True)
"""


def run_python(program: str, **variables: str) -> tuple[str, str]:
    result = run(sys.executable, "-c", program, PYTHONPATH=os.pathsep.join(sys.path), **variables)
    return result.stdout, result.stderr


@pytest.mark.parametrize("threads", ["3", "0", "many", ""])
def test_a_program_convolves_with_any_value_of_mucudnn_threads(threads: str) -> None:
    assert run_python(OPENS, MUCUDNN_THREADS=threads) == ("ok\n", "")


def test_a_preloaded_cudnn_captures_no_call_that_the_library_makes_to_itself(tmp_path: Path) -> None:
    interposer = tmp_path / "interposer.so"
    source = Path(__file__).with_name("interposer.c")
    compile_c("-shared", "-fPIC", f"-I{abi.ABI.parent}", source, "-o", interposer)
    # The last line makes a call of the program's own, which the preloaded library takes.
    own = f"{OPENS}ctypes.CDLL(None).cudnnCreate(None)"
    said, captured = run_python(own, LD_PRELOAD=preload(interposer))
    assert (said, captured.splitlines()[:1]) == ("ok\n", ["captured: cudnnCreate"])


def test_the_library_exports_the_declared_functions_seven_of_our_own_and_nothing_else() -> None:
    result = run("nm", "-D", "--defined-only", "--format=just-symbols", _native.host_library())
    assert result.returncode == 0, result.stderr
    exported = set(result.stdout.split())
    version = "@@libcudnn.so.9"
    names = "Convolve", "Describe", "GetKeptFilterSize", "KeepFilter", "MeetTeam", "SetThreads", "Team"
    ours = [f"mucudnnHost{name}" for name in names]
    expected = {function + version for function in (*abi.FUNCTIONS, *ours)}
    assert exported - {"libcudnn.so.9"} == expected
