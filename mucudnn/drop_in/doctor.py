"""The checks of the drop-in on this machine and for a program, with the reasons for what does not work."""

import os
import re
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path

from mucudnn.drop_in.elf import NotElfError, mapped, read_elf
from mucudnn.drop_in.findings import Finding, examine_file
from mucudnn.drop_in.libraries import (
    TIMEOUT,
    find_interpreter,
    find_libraries,
    format_version,
    preloading,
    run_child,
    shim_path,
)
from mucudnn.errors import UsageError

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


def try_drop_in() -> Finding:
    """Open libcudnn.so.9 in a child process under the drop-in, and report which library answers."""
    subject = "a child process under mucudnn run"
    environment = preloading(shim_path(), {**os.environ, "MUCUDNN_LOG": "info"})
    try:
        answer = run_child([sys.executable, "-c", _OPEN], environment)
    except subprocess.TimeoutExpired:
        return Finding(subject, False, f"did not answer within {TIMEOUT} s")
    messages = " ".join(line.removeprefix("mucudnn: ") for line in answer.stderr.strip().splitlines())
    if answer.returncode != 0:
        return Finding(subject, False, f"ended with {answer.returncode}: {messages}")
    file, version = answer.stdout.splitlines()
    if not os.path.samefile(file, shim_path()):
        return Finding(subject, False, f"got {file} instead of mucudnn's library: {messages}")
    if version == "0":
        none = "got mucudnn's library, which found no cuDNN to pass calls on to"
        if not find_libraries():  # nothing is wrong on a machine without a GPU
            return Finding(subject, None, f"{none}: this machine has none")
        return Finding(subject, False, f"{none}: {messages}")
    real = re.search("passed on to '(.*)'", messages)
    assert real, messages
    return Finding(
        subject,
        True,
        f"gets mucudnn's library, in front of {real[1]}, version {format_version(int(version))}",
    )


def examine(name: str) -> list[Finding]:
    """Report what `mucudnn run` would do for a program, a library file or an installed Python package.

    Nothing is executed. Raises UsageError if there is no such file, command or package.
    """
    if Path(name).is_file():
        return [_examine_program(name, Path(name))]
    try:
        package = metadata.distribution(name)
    except (metadata.PackageNotFoundError, ValueError):
        program = shutil.which(name)
        if program is None:
            raise UsageError(f"'{name}' is not a file, a command or an installed Python package") from None
        return [_examine_program(name, Path(program))]
    return _examine_package(name, package)


def _examine_package(name: str, package: metadata.Distribution) -> list[Finding]:
    findings = []
    for file in package.files or ():
        if ".so" not in file.name or file.name.startswith("libcudnn"):
            continue
        path = Path(str(package.locate_file(file)))
        try:  # the path distinguishes files of one name in different folders
            finding = examine_file(f"{name}: {file}", path, read_elf(path), program=False)
        except (NotElfError, OSError):  # a linker script, or a file that is listed but missing
            continue
        if finding.uses_cudnn:
            findings.append(finding)
    text = "no file of this package calls cuDNN; one of the libraries that it loads may: name that library"
    return findings or [Finding(name, None, text, uses_cudnn=False)]


def _examine_program(subject: str, path: Path) -> Finding:
    try:
        with mapped(path) as data:
            start = bytes(data[:4])
        if start.startswith(b"#!"):
            program = find_interpreter(path)
            if program is None:
                return Finding(subject, None, "is a script whose interpreter was not found")
            return _examine_program(f"{subject}, a script of {program}", program.resolve())
        if start != b"\x7fELF":
            return Finding(
                subject,
                None,
                "is neither a program nor a script with #!: name the program that runs it, such as python",
            )
        return examine_file(subject, path, read_elf(path), program=".so" not in path.name)
    except NotElfError as error:
        return Finding(subject, None, str(error))
    except OSError as error:
        return Finding(subject, None, f"{path} cannot be read: {error.strerror}")
