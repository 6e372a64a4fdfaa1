"""The drop-in hands cuDNN 9 to no program that is written for cuDNN 8."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from programs import SHIM, compile_c, host_engine_folders, run, run_under_mucudnn

HERE = Path(__file__).parent
ASK = """
import ctypes, sys
for name in sys.argv[1:]:
    library = ctypes.CDLL(name)
library.ask_version.restype = ctypes.c_size_t
print(library.ask_version(), library.ask_handle())
"""
CUDNN_8 = """
#include <stddef.h>
size_t cudnnGetVersion(void) { return 8907; }
int cudnnCreate(void** handle) { return handle == NULL ? 3 : 0; }
int cudnnRNNForwardTraining(void) { return 0; }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a cuDNN 8 of three functions, and forwarders to cuDNN 8 and to cuDNN 9."""
    folder = tmp_path_factory.mktemp("programs")
    (folder / "eight.c").write_text(CUDNN_8)
    shared = ("-shared", "-fPIC", "-O1")
    compile_c(*shared, "-Wl,-soname,libcudnn.so.8", folder / "eight.c", "-o", folder / "libcudnn.so.8")
    for name, options in (("for_8.so", ("-DEIGHT",)), ("for_9.so", ())):
        compile_c(*shared, *options, HERE / "forwarder.c", "-o", folder / name, "-ldl")
    source = folder / "linked.c"
    source.write_text("#include <stddef.h>\nsize_t cudnnGetVersion(void);\nvoid* used = cudnnGetVersion;\n")
    compile_c(*shared, "-Wno-pedantic", source, SHIM, "-o", folder / "linked_against_9.so")
    return folder


def ask(folder: Path, *libraries: str, **changes: str) -> subprocess.CompletedProcess[str]:
    files = [folder / library for library in libraries]
    search = {"LD_LIBRARY_PATH": str(folder), **changes}
    return run_under_mucudnn(sys.executable, "-c", ASK, *files, **search)


def test_a_program_for_cudnn_8_gets_the_library_that_it_gets_alone_and_one_warning(folder: Path) -> None:
    alone = run(sys.executable, "-c", ASK, folder / "for_8.so", LD_LIBRARY_PATH=str(folder))
    assert alone.stdout == "8907 3\n"
    for changes in ({}, {"MUCUDNN_LIBRARY": "host"}, {"MUCUDNN_MODE": "off"}):
        under = ask(folder, "for_8.so", **changes)
        assert (under.returncode, under.stdout) == (0, alone.stdout)
        assert under.stderr == (
            f"mucudnn: '{folder}/for_8.so' is written for cuDNN 8, and mucudnn stands in for cuDNN 9 only: "
            "its calls go where they go without mucudnn, and nothing is divided\n"
        )


def test_a_program_for_cudnn_9_that_forwards_its_calls_gets_the_drop_in(folder: Path) -> None:
    under = ask(folder, "for_9.so", MUCUDNN_LIBRARY="host", MUCUDNN_LOG="info")
    assert under.stdout == "91900 2000\n"
    assert "calls are passed on to" in under.stderr
    assert "written for cuDNN 8" not in under.stderr


def test_the_drop_in_keeps_cudnn_9_for_a_library_that_is_linked_against_it(
    folder: Path, tmp_path: Path
) -> None:
    folders = host_engine_folders(tmp_path / "host")
    search = f"{folders}:{folder}"
    under = ask(folder, "linked_against_9.so", "for_8.so", LD_LIBRARY_PATH=search)
    assert under.stdout.split()[0] == "91900"
