"""The check that the drop-in works on this machine and for a given program, and why it does not."""

import mmap
import os
import re
import shutil
import stat
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from mucudnn.drop_in.elf import Elf, NotElfError, mapped, read_elf
from mucudnn.drop_in.libraries import (
    TIMEOUT,
    format_version,
    preloading,
    run_child,
    shim_path,
)
from mucudnn.errors import UsageError
from mucudnn.measuring.engines import SONAME, chosen_library

_OPEN = """
import ctypes
class Info(ctypes.Structure):
    _fields_ = [("file", ctypes.c_char_p), ("base", ctypes.c_void_p),
                ("name", ctypes.c_char_p), ("address", ctypes.c_void_p)]
library = ctypes.CDLL("libcudnn.so.9")
library.cudnnGetVersion.restype = ctypes.c_size_t
info = Info()
ctypes.CDLL(None).dladdr(ctypes.cast(library.cudnnGetVersion, ctypes.c_void_p), ctypes.byref(info))
print(info.file.decode())
print(library.cudnnGetVersion())
"""
_NO_MENTION = "does not mention cuDNN, but a library that it loads may: name that one, such as torch"


@dataclass(frozen=True)
class Finding:
    """The answer about one program or file; `works` is None where the doctor cannot tell."""

    subject: str
    works: bool | None
    text: str


def prove() -> Finding:
    """Open libcudnn.so.9 in a child process under the drop-in, and look which library answers."""
    subject = "a child process under mucudnn run"
    environment = preloading(shim_path(), {**os.environ, "MUCUDNN_LOG": "info"})
    try:
        answer = run_child([sys.executable, "-c", _OPEN], environment)
    except subprocess.TimeoutExpired:
        return Finding(subject, False, f"did not answer within {TIMEOUT} s")
    messages = " ".join(answer.stderr.strip().splitlines())
    if answer.returncode != 0:
        return Finding(subject, False, f"ended with {answer.returncode}: {messages}")
    file, version = answer.stdout.splitlines()
    if not os.path.samefile(file, shim_path()):
        return Finding(subject, False, f"got {file} instead of mucudnn's library: {messages}")
    if version == "0":
        return Finding(
            subject, False, f"got mucudnn's library, which found no cuDNN to pass calls on to: {messages}"
        )
    real = re.search("passed on to '(.*)'", messages)
    assert real, messages
    return Finding(
        subject,
        True,
        f"gets mucudnn's library, in front of {real[1]}, version {format_version(int(version))}",
    )


def examine(name: str) -> list[Finding]:
    """Find out what `mucudnn run` would do for a program, a library file or an installed Python package.

    Nothing of it is executed. Raises UsageError if there is no such file, command or package.
    """
    if Path(name).is_file():
        return [_examine_program(name, Path(name))]
    try:
        package = metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        program = shutil.which(name)
        if program is None:
            raise UsageError(f"'{name}' is no file, command or installed Python package") from None
        return [_examine_program(name, Path(program))]
    return _examine_package(name, package)


def _examine_package(name: str, package: metadata.Distribution) -> list[Finding]:
    findings = []
    for file in package.files or ():
        if ".so" not in file.name or file.name.startswith("libcudnn"):
            continue
        path = Path(str(package.locate_file(file)))
        try:
            finding = _examine_file(f"{name}: {file.name}", path, read_elf(path), program=False)
        except (NotElfError, OSError):  # a linker script, or a file that is listed but missing
            continue
        if finding.text != _NO_MENTION:
            findings.append(finding)
    return findings or [Finding(name, None, "nothing in this package mentions cuDNN")]


def _examine_program(subject: str, path: Path) -> Finding:
    try:
        with mapped(path) as data:
            first = bytes(data[:256]).split(b"\n")[0].decode(errors="replace")
        if first.startswith("#!"):
            return _examine_script(subject, first[2:].split())
        if not first.startswith("\x7fELF"):
            return Finding(
                subject,
                None,
                "is neither a program nor a script with #!: name the program that runs it, such as python",
            )
        return _examine_file(subject, path, read_elf(path), program=".so" not in path.name)
    except NotElfError as error:
        return Finding(subject, None, str(error))
    except OSError as error:
        return Finding(subject, None, f"{path} cannot be read: {error.strerror}")


def _examine_script(subject: str, words: list[str]) -> Finding:
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    program = shutil.which(words[0]) if words else None
    if program is None:
        return Finding(subject, None, "is a script whose interpreter was not found")
    return _examine_program(f"{subject}, a script of {program}", Path(program).resolve())


def _examine_file(subject: str, path: Path, elf: Elf, *, program: bool) -> Finding:
    if elf.soname == SONAME:
        return Finding(subject, None, "is a cuDNN itself; name a program that uses it")
    obstacle = _find_obstacle(path, elf, program=program)
    if obstacle:
        return Finding(subject, False, obstacle)
    by_path = [needed for needed in elf.needed if "/" in needed and "libcudnn" in needed]
    if by_path:
        return Finding(
            subject,
            False,
            f"is linked against the path {by_path[0]}: the drop-in replaces a name, not a path",
        )
    if SONAME in elf.needed:
        return _examine_linked(subject, path, elf)
    return _examine_opened(subject, path)


def _find_obstacle(path: Path, elf: Elf, *, program: bool) -> str | None:
    """Return why no drop-in can work for a file; None if nothing speaks against it."""
    ours = read_elf(shim_path()).machine
    if elf.machine != ours:
        return f"is for {elf.machine}, mucudnn's library for {ours}: the loader ignores it"
    if program and elf.interpreter is None:
        return "is linked statically: no loader runs that could preload a library"
    if program and _is_privileged(path):
        return (
            "runs with privileges of its own (setuid, setgid or capabilities): the loader ignores LD_PRELOAD"
        )
    if any(name.startswith("cudnnCreate") for name in elf.exports):
        return "holds a cuDNN of its own, linked into it: it calls no other library"
    other = [
        needed for needed in elf.needed if re.fullmatch(r"libcudnn\.so(\.\d+)?", needed) and needed != SONAME
    ]
    return f"is linked against {other[0]}: mucudnn stands in for {SONAME} only" if other else None


def _is_privileged(path: Path) -> bool:
    if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID):
        return True
    try:
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False


def _examine_linked(subject: str, path: Path, elf: Elf) -> Finding:
    """Ask the loader, which lists the libraries that it would load without starting the program.

    Only the system's loader is run: the program, which may be of a stranger, can name any file as its own.
    """
    if elf.interpreter is not None and os.path.realpath(elf.interpreter) not in _system_loaders():
        text = f"asks for the loader {elf.interpreter}, which is not the system's: it was not run"
        return Finding(subject, None, f"linked against {SONAME}; {text}")
    if elf.auditors:
        text = f"brings the auditor {elf.auditors[0]} along, which the loader would run: it was not asked"
        return Finding(subject, None, f"linked against {SONAME}; {text}")
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    without = _ask_loader(path, elf, plain)
    under = _ask_loader(path, elf, preloading(shim_path(), dict(os.environ)))
    own = f"linked against {SONAME}; alone it gets {without or 'none: it is not found'}"
    if under is None or not os.path.samefile(under, shim_path()):
        return Finding(subject, False, f"{own}; under mucudnn run the loader still takes {under or 'none'}")
    real = chosen_library() or without
    if real is None:
        # The program that loads this library may have loaded a cuDNN before.
        return Finding(subject, None, f"{own}; where nothing else brings one, set MUCUDNN_LIBRARY")
    return Finding(subject, True, f"{own}; under mucudnn run it gets mucudnn's library in front of {real}")


def _system_loaders() -> set[str]:
    """Return the paths of the loader that runs this Python, and of the one at the usual place."""
    ours = read_elf(Path(sys.executable).resolve())
    usual = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
    return {os.path.realpath(path) for path in (ours.interpreter, usual.get(ours.machine)) if path}


def _ask_loader(path: Path, elf: Elf, environment: dict[str, str]) -> str | None:
    """Return the path of the libcudnn.so.9 that the loader takes for a file; None if it finds none."""
    loader = elf.interpreter or read_elf(Path(sys.executable).resolve()).interpreter
    if loader is None:
        return None
    # Unlike --list, this variable lets the loader go on after a missing library.
    # LD_WARN would make it relocate, which runs functions of the libraries.
    traced = {name: value for name, value in environment.items() if name != "LD_WARN"}
    answer = run_child([loader, str(path.resolve())], {**traced, "LD_TRACE_LOADED_OBJECTS": "1"})
    listed = re.search(
        rf"^\s*(?:{re.escape(SONAME)} => )?(/.*{re.escape(SONAME)}) \(", answer.stdout, re.MULTILINE
    )
    return listed[1] if listed else None


def _find_mentions(data: mmap.mmap | bytes) -> Iterator[str]:
    """Yield the names and paths of a libcudnn.so in a file.

    It searches for the end of a path first, so that it reads a large file only once.
    """
    for found in re.finditer(rb"libcudnn\.so[.\d]*", data):
        before = data[max(0, found.start() - 4096) : found.start()][::-1]
        folder = re.match(rb"[\w./+-]*", before)
        assert folder  # the pattern matches the empty text, too
        yield (folder[0][::-1] + found[0]).decode()


def _examine_opened(subject: str, path: Path) -> Finding:
    """Guess from the names in the file whether it opens cuDNN at run time; the finding tells what it saw."""
    with mapped(path) as data:
        names = set(_find_mentions(data))
        calls = data.find(b"cudnnGetVersion") >= 0 or data.find(b"cudnnCreate") >= 0
    paths = sorted(name for name in names if name.startswith("/"))
    if paths:
        return Finding(
            subject, False, f"holds the path {paths[0]}: a library opened by its path escapes the drop-in"
        )
    if SONAME in names:
        return Finding(
            subject, True, f"opens {SONAME} by its name, and gets mucudnn's library under mucudnn run"
        )
    if names:
        return Finding(subject, False, f"holds the name {min(names)}: mucudnn stands in for {SONAME} only")
    if calls:
        text = f"names functions of cuDNN, but no library: if it opens {SONAME}, it gets mucudnn's library"
        return Finding(subject, None, text)
    return Finding(subject, None, _NO_MENTION)
