"""Helpers that compile and run small C programs, and run commands with and without `mucudnn run`."""

import os
import shutil
import subprocess
import sys
from functools import cache
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

import pytest
import scipy_openblas32

from mucudnn import _native

SONAME = "libcudnn.so.9"
COMPILERS = {"c": ("CC", "cc", "c11"), "cpp": ("CXX", "c++", "c++17")}
# A program that takes longer counts as hanging: the longest one takes seconds.
HANGS = 600  # seconds
SHIM = Path(_native.host_library()).parent / "shim" / SONAME
ROOT = Path(__file__).parents[1]


def is_missing(reason: str) -> NoReturn:
    """Skip the test. In CI, which must have everything, fail it."""
    if os.environ.get("CI"):
        pytest.fail(reason)
    pytest.skip(reason)


def imported(name: str) -> Any:
    """Import a module that has the name of its package. Without it, skip the test or, in CI, fail it."""
    try:
        return import_module(name)
    except ImportError:
        is_missing(f"needs {name}: pip install {name}")


def imported_torchvision() -> Any:
    """Import torchvision beside any PyTorch. Without it, skip the test or, in CI, fail it."""
    from bench.lib.vision import import_torchvision  # imports PyTorch

    try:
        return import_torchvision()
    except ImportError:
        is_missing("needs torchvision: pip install --no-deps torchvision")


def environment(**changes: str) -> dict[str, str]:
    """Return this process's environment with `changes`. It keeps no setting of mucudnn but the cache."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("MUCUDNN_") or name == "MUCUDNN_CACHE"
    }
    return {**kept, **changes}


def preload(*libraries: Path) -> str:
    """Return LD_PRELOAD with these libraries added at the end, because a sanitizer must come first."""
    return " ".join(filter(None, [os.environ.get("LD_PRELOAD", ""), *map(str, libraries)]))


def run(*command: str | Path, stdin: str = "", **changes: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=environment(**changes),
        input=stdin,
        capture_output=True,
        text=True,
        check=False,
        timeout=HANGS,
    )


def run_under_mucudnn(
    *command: str | Path, stdin: str = "", **changes: str
) -> subprocess.CompletedProcess[str]:
    return run(sys.executable, "-m", "mucudnn", "run", "--", *command, stdin=stdin, **changes)


def run_compiler(language: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run the compiler of "c" or "cpp"."""
    variable, name, standard = COMPILERS[language]
    compiler = os.environ.get(variable) or shutil.which(name)
    assert compiler, f"needs a compiler: set {variable}"
    # A preloaded sanitizer must not run in the compiler.
    variables = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    command = [*compiler.split(), f"-std={standard}", *arguments]
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False)


def compile_c(*arguments: str | Path) -> None:
    # Stand-in functions have the parameters of the real ones, and use few of them.
    options = ("-Wall", "-Wextra", "-Wno-unused-parameter", "-Werror")
    result = run_compiler("c", *options, *arguments)
    assert result.returncode == 0, result.stderr


def compile_library(library: Path, text: str, *options: str | Path) -> Path:
    """Compile C code into a shared library, and return its path."""
    source = library.with_suffix(".c")
    source.write_text(text)
    compile_c("-shared", "-fPIC", source, "-o", library, *options)
    return library


def library_that_leaves_a_trace(folder: Path) -> tuple[Path, Path]:
    """Compile a library whose constructor writes a file. Return the paths of both."""
    trace = folder / "trace"
    text = f"""#include <stdio.h>
__attribute__((constructor)) static void start(void) {{ fclose(fopen("{trace}", "w")); }}
"""
    return compile_library(folder / "trace.so", text), trace


@cache
def cudart_library() -> str:
    """Return the path of our CUDA runtime on the CPU, `libcudart.so.13` in a folder of its own.

    It is compiled again if its source is newer. Programs that are to run on the host engine find it if their
    LD_LIBRARY_PATH names the folder.
    """
    folder, library = ROOT / "tests" / "cudart", ROOT / "build" / "cudart" / "libcudart.so.13"
    sources = [*folder.iterdir(), ROOT / "native" / "abi" / "cudart.h"]
    if not library.exists() or library.stat().st_mtime < max(file.stat().st_mtime for file in sources):
        library.parent.mkdir(parents=True, exist_ok=True)
        # Other processes may compile it at the same time, so each moves a whole file into place.
        with TemporaryDirectory(dir=library.parents[1]) as scratch:
            fresh = Path(scratch) / library.name
            result = run_compiler(
                "cpp", "-O1", "-g", "-fPIC", "-shared", f"-I{ROOT / 'native'}", folder / "runtime.cpp",
                f"-Wl,--version-script={folder / 'exports.map'},-soname,{library.name},-z,defs", "-o", fresh,
            )  # fmt: skip
            assert result.returncode == 0, result.stderr
            fresh.replace(library)
    return str(library)


def host_engine_folders(folder: Path, library: str | None = None) -> str:
    """Link the host engine, or `library`, as cuDNN into `folder`. Return LD_LIBRARY_PATH, with OpenBLAS."""
    folder.mkdir()
    (folder / SONAME).symlink_to(library or _native.host_library())
    return f"{folder}:{scipy_openblas32.get_lib_dir()}"


def cuda_program_folders(folder: Path, library: str | None = None) -> str:
    """Do as `host_engine_folders`, and add the folder of our CUDA runtime."""
    return f"{host_engine_folders(folder, library)}:{Path(cudart_library()).parent}"
