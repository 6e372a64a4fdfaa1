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


def test_a_program_that_is_linked_against_a_library_for_cudnn_8_is_not_started(
    folder: Path, tmp_path: Path
) -> None:
    source, program = tmp_path / "program.c", tmp_path / "program"
    source.write_text("int ask_handle(void);\nint main(void) { return ask_handle(); }\n")
    compile_c(source, "-o", program, folder / "for_8.so", f"-Wl,-rpath,{folder}")
    assert run(program, LD_LIBRARY_PATH=str(folder)).returncode == 3
    under = run_under_mucudnn(program)
    assert (under.returncode, under.stdout) == (1, "")
    assert under.stderr == (
        f"mucudnn: not run: {program} loads {folder}/for_8.so, which is written for cuDNN 8; mucudnn "
        "stands in for cuDNN 9 only. Run the program without mucudnn, or use a newer version of it\n"
    )
    compile_c(source, "-o", program, folder / "for_9.so", f"-Wl,-rpath,{folder}")
    assert run_under_mucudnn(program, MUCUDNN_LIBRARY="host").returncode == 2000 % 256


@pytest.mark.parametrize("kind", ["script", "text", "executable script"])
def test_a_python_script_that_imports_a_tensorflow_for_cudnn_8_is_not_started(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    python = tmp_path / "bin" / "python3"
    library = tmp_path / "lib/python3.11/site-packages/tensorflow/libtensorflow_framework.so.2"
    python.parent.mkdir()
    python.write_text("#!/bin/sh\necho started\n")
    python.chmod(0o755)
    library.parent.mkdir(parents=True)
    script = tmp_path / "train.py"
    script.write_text(f"#!{python}\nimport os\nimport tensorflow as tf\n")
    script.chmod(0o755)
    command = {
        "script": (python, "-u", script, "--epochs", "3"),
        "text": (python, "-c", script.read_text(), "import nothing"),
        "executable script": (script,),
    }[kind]
    for name, refused in (("for_8.so", True), ("for_9.so", False)):
        library.unlink(missing_ok=True)
        library.symlink_to(folder / name)
        under = run_under_mucudnn(*command)
        assert ("which is written for cuDNN 8" in under.stderr) is refused, under.stderr
        assert under.stdout == ("" if refused else "started\n")
    library.unlink()
    library.symlink_to(folder / "for_8.so")
    assert run_under_mucudnn(python, "-c", "print('tensorflow')").stdout == "started\n"
