"""The libcudnn.so.9 files of this machine, and the drop-in of that name that comes with mucudnn."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from mucudnn import settings
from mucudnn._native import host_library
from mucudnn.drop_in.elf import Elf, NotElfError, read_elf
from mucudnn.input import open_without_waiting
from mucudnn.measuring.engines import SONAME, chosen_library

TIMEOUT = 60  # seconds that a child process may take
_ASK_VERSION = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.cudnnGetVersion.restype = ctypes.c_size_t
print(library.cudnnGetVersion())
"""


@dataclass(frozen=True)
class FoundLibrary:
    """A libcudnn.so.9, and the variable, package or program that led to it."""

    path: Path
    origin: str


def shim_path() -> Path:
    """Return the path of the drop-in, which is installed next to the extension module."""
    return Path(host_library()).parent / "shim" / SONAME


@cache
def known_functions() -> frozenset[str]:
    """Return the names of all functions that the drop-in passes on."""
    return _list_functions(read_elf(shim_path()))


def unknown_functions(path: Path) -> list[str]:
    """Return the functions that the library at `path` exports and the drop-in does not know, sorted.

    Raises NotElfError, OSError.
    """
    return sorted(_list_functions(read_elf(path)) - known_functions())


def _list_functions(library: Elf) -> frozenset[str]:
    return frozenset(name for name in library.exports if name.startswith("cudnn"))


def find_libraries() -> list[FoundLibrary]:
    """Return every libcudnn.so.9 that can be found except the drop-in, each file once.

    The value of MUCUDNN_LIBRARY comes first. Raises UsageError if that variable cannot be read.
    """
    chosen = chosen_library()
    named = [FoundLibrary(chosen, settings.LIBRARY.variable)] if chosen else []
    by_path: dict[Path, FoundLibrary] = {}
    for item in (*named, *_search_packages(), *_search_path(), *_search_loader_cache()):
        if item.path.is_file() or item in named:
            by_path.setdefault(item.path.resolve(), item)
    by_path.pop(shim_path().resolve(), None)
    return list(by_path.values())


def _search_packages() -> Iterator[FoundLibrary]:
    for package in metadata.distributions():
        name = package.metadata["Name"] or ""
        if not name.lower().startswith("nvidia-cudnn"):
            continue
        for file in package.files or ():
            if file.name == SONAME:
                path = Path(os.path.normpath(str(package.locate_file(file))))
                yield FoundLibrary(path, f"Python package {name} {package.version}")


def _search_path() -> Iterator[FoundLibrary]:
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder:
            yield FoundLibrary(Path(folder).absolute() / SONAME, "LD_LIBRARY_PATH")


def _search_loader_cache() -> Iterator[FoundLibrary]:
    for program in ("ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"):
        try:
            answer = run_child([program, "-p"])
        except OSError:  # ldconfig may be at the next place
            continue
        for path in re.findall(rf"{re.escape(SONAME)} .*=> (/.*)", answer.stdout):
            yield FoundLibrary(Path(path), "ldconfig")
        return


def list_linked(program: Path) -> list[Path]:
    """Return the libraries that the loader would load with a program, without starting it.

    The list is empty for a program whose loader is not Python's.
    """
    try:
        elf = read_elf(program)
        loader = None if elf.auditors else elf.interpreter
        if loader is None or loader != read_python().interpreter:
            return []
        return trace_loader(loader, program, without_preload())
    except (NotElfError, OSError, subprocess.TimeoutExpired):
        return []


def read_python() -> Elf:
    """Read the headers of the Python that runs this."""
    return read_elf(Path(sys.executable).resolve())


def trace_loader(loader: str, file: Path, environment: dict[str, str]) -> list[Path]:
    """Return the libraries that a loader would load with a file."""
    # Unlike --list, this variable lets the loader go on after a missing library.
    # LD_WARN would make it relocate, which runs functions of the libraries.
    traced = {name: value for name, value in environment.items() if name != "LD_WARN"}
    answer = run_child([loader, str(file)], {**traced, "LD_TRACE_LOADED_OBJECTS": "1"})
    return [Path(path) for path in re.findall(r"^\s*(?:\S+ => )?(/.*) \(", answer.stdout, re.MULTILINE)]


def find_interpreter(program: Path) -> Path | None:
    """Return the program that a script's first line names after #!, or None if there is none."""
    try:
        with open(program, "rb", opener=open_without_waiting) as file:
            line = file.readline(256).decode(errors="replace")
    except OSError:
        return None
    words = line[2:].split() if line.startswith("#!") else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    found = shutil.which(words[0]) if words else None
    return Path(found) if found else None


def version_of(library: Path | str) -> tuple[int | None, str]:
    """Ask a library for its version in a child process. Returns (version, "") or (None, reason)."""
    try:
        answer = run_child([sys.executable, "-c", _ASK_VERSION, str(library)])
    except subprocess.TimeoutExpired:
        return None, f"did not answer within {TIMEOUT} s"
    if answer.returncode == 0:
        return int(answer.stdout), ""
    if answer.returncode < 0:
        return None, f"asking for its version ended with signal {-answer.returncode}"
    lines = answer.stderr.strip().splitlines()
    return None, lines[-1] if lines else f"asking for its version ended with code {answer.returncode}"


def format_version(version: int) -> str:
    """Write cuDNN's version number: 92800 as `9.28.0`."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def preloading(shim: Path, environment: dict[str, str]) -> dict[str, str]:
    """Return `environment` with `shim` in LD_PRELOAD.

    The shim comes after the libraries that are already there, because sanitizers must be first. Its folder
    also becomes the first in LD_LIBRARY_PATH, because some programs, such as cudnn-frontend's Python module,
    search that path themselves and open the library that they find.
    """
    there = environment.get("LD_PRELOAD", "")
    if str(shim) in re.split("[ :]+", there):
        return environment
    folders = filter(None, (str(shim.parent), environment.get("LD_LIBRARY_PATH")))
    return {**environment, "LD_PRELOAD": f"{there} {shim}".strip(), "LD_LIBRARY_PATH": ":".join(folders)}


def without_preload() -> dict[str, str]:
    """Return the environment of this process without LD_PRELOAD."""
    return {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}


def run_child(
    command: list[str], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a child process, by default without LD_PRELOAD, and return its output.

    Raises OSError, and subprocess.TimeoutExpired after TIMEOUT seconds.
    """
    return subprocess.run(
        command,
        env=without_preload() if environment is None else environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=TIMEOUT,
    )
