"""The libcudnn.so.9 files of this machine, and the stand-in for them that comes with mucudnn."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from mucudnn import settings
from mucudnn._native import host_library
from mucudnn.drop_in.elf import Elf, read_elf

SONAME = "libcudnn.so.9"
TIMEOUT = 60  # seconds that a child process may take
_ASK_VERSION = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.cudnnGetVersion.restype = ctypes.c_size_t
print(library.cudnnGetVersion())
"""


@dataclass(frozen=True)
class Found:
    """A libcudnn.so.9 and how it was found."""

    path: Path
    origin: str


def shim_path() -> Path:
    """The stand-in, beside the extension."""
    return Path(host_library()).parent / "shim" / SONAME


@cache
def known_functions() -> frozenset[str]:
    """Every function that the stand-in passes on."""
    return _functions(read_elf(shim_path()))


def unknown_functions(path: Path) -> list[str]:
    """What the library at `path` exports and the stand-in does not know.

    Raises NotElfError and OSError.
    """
    return sorted(_functions(read_elf(path)) - known_functions())


def _functions(library: Elf) -> frozenset[str]:
    return frozenset(name for name in library.exports if name.startswith("cudnn"))


def chosen_library() -> Path | None:
    """What MUCUDNN_LIBRARY names, if it is set. Raises UsageError where it cannot be read."""
    choice: str | None = settings.LIBRARY.read()
    if choice == "host":
        return Path(host_library())
    return Path(choice) if choice else None


def find_libraries() -> list[Found]:
    """Every libcudnn.so.9 that can be found, each file once. Raises UsageError as chosen_library does."""
    chosen = chosen_library()
    named = [Found(chosen, "MUCUDNN_LIBRARY")] if chosen else []
    found: dict[Path, Found] = {}
    for item in (*named, *_in_package(), *_in_search_path(), *_in_loader_cache()):
        if item.path.is_file() or item in named:
            found.setdefault(item.path.resolve(), item)
    found.pop(shim_path().resolve(), None)
    return list(found.values())


def _in_package() -> Iterator[Found]:
    for package in metadata.distributions():
        name = package.metadata["Name"] or ""
        if not name.lower().startswith("nvidia-cudnn"):
            continue
        for file in package.files or ():
            if file.name == SONAME:
                path = Path(os.path.normpath(str(package.locate_file(file))))
                yield Found(path, f"Python package {name} {package.version}")


def _in_search_path() -> Iterator[Found]:
    for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":"):
        if folder:
            yield Found(Path(folder).absolute() / SONAME, "LD_LIBRARY_PATH")


def _in_loader_cache() -> Iterator[Found]:
    for program in ("ldconfig", "/sbin/ldconfig", "/usr/sbin/ldconfig"):
        try:
            answer = run_child([program, "-p"])
        except OSError:  # not there: it may be at the next place
            continue
        for path in re.findall(rf"{re.escape(SONAME)} .*=> (/.*)", answer.stdout):
            yield Found(Path(path), "ldconfig")
        return


def version_of(library: Path | str) -> tuple[int | None, str]:
    """(version, reason): what cudnnGetVersion answers in a child process, None with the reason if nothing."""
    try:
        answer = run_child([sys.executable, "-c", _ASK_VERSION, str(library)])
    except subprocess.TimeoutExpired:
        return None, f"does not answer within {TIMEOUT} s"
    if answer.returncode == 0:
        return int(answer.stdout), ""
    if answer.returncode < 0:
        return None, f"asking for its version ended with signal {-answer.returncode}"
    lines = answer.stderr.strip().splitlines()
    return None, lines[-1] if lines else f"asking for its version ended with code {answer.returncode}"


def format_version(version: int) -> str:
    """92800 as 9.28.0."""
    return f"{version // 10000}.{version // 100 % 100}.{version % 100}"


def preloading(shim: Path, environment: dict[str, str]) -> dict[str, str]:
    """`environment` with `shim` in LD_PRELOAD, behind what is there (sanitizers must come first).

    Its folder is the first of LD_LIBRARY_PATH as well, for programs that look there themselves and open what
    they find by its path, as cudnn-frontend's Python module does.
    """
    there = environment.get("LD_PRELOAD", "")
    if str(shim) in re.split("[ :]+", there):
        return environment
    folders = filter(None, (str(shim.parent), environment.get("LD_LIBRARY_PATH")))
    return {
        **environment,
        "LD_PRELOAD": f"{there} {shim}".strip(),
        "LD_LIBRARY_PATH": ":".join(folders),
    }


def run_child(
    command: list[str], environment: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """The answer of a child process; without an `environment`, in this one but for LD_PRELOAD.

    Raises OSError and subprocess.TimeoutExpired.
    """
    if environment is None:
        environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    return subprocess.run(
        command,
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        timeout=TIMEOUT,
    )
