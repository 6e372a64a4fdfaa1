"""The finding about a program or library: which libcudnn.so.9 it gets under `mucudnn run`, and why."""

import mmap
import os
import re
import stat
import statistics
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from mucudnn.drop_in.elf import Elf, mapped, read_elf
from mucudnn.drop_in.libraries import (
    known_functions,
    preloading,
    read_python,
    shim_path,
    trace_loader,
    without_preload,
)
from mucudnn.measuring.engines import SONAME, chosen_library

# The functions of cuDNN 8 that frameworks call and cuDNN 9 lacks (native/shim/entry).
DROPPED = frozenset({
    "cudnnAdvInferVersionCheck", "cudnnAdvTrainVersionCheck", "cudnnCnnInferVersionCheck",
    "cudnnCnnTrainVersionCheck", "cudnnOpsInferVersionCheck", "cudnnOpsTrainVersionCheck",
    "cudnnGetRNNParamsSize", "cudnnGetRNNTrainingReserveSize", "cudnnGetRNNWorkspaceSize",
    "cudnnRNNBackwardData", "cudnnRNNBackwardWeights", "cudnnRNNForwardInference",
    "cudnnRNNForwardTraining", "cudnnSetRNNDescriptor_v6",
})  # fmt: skip
_FORWARDER = 64  # the most bytes from one forwarder to the next; TensorFlow's are 32 bytes apart
_LINKED_NAME = re.compile(r"libcudnn(-[0-9a-f]+)?\.so(\.(\d+))?[\d.]*")
# A compiler writes a short text into the code as eight-byte numbers, which may overlap.
_NAME_IN_CODE = re.compile(rb"libcudnn.{0,24}?(?:dnn\.so\.9|\.so\.9)", re.DOTALL)
_NAME_OF_A_FUNCTION = re.compile(rb"\0(cudnn[A-Z]\w*)(?=\0)")


@dataclass(frozen=True)
class Finding:
    """The answer about a program or file; `works` is None if the doctor does not know."""

    subject: str
    works: bool | None
    text: str
    uses_cudnn: bool = True


Answer = tuple[bool | None, str]  # the fields `works` and `text` of a finding


def examine_file(subject: str, path: Path, elf: Elf, *, program: bool) -> Finding:
    """Examine the program or library at `path` by its symbols and texts, without executing it."""
    if elf.soname == SONAME:
        return Finding(subject, None, "is a cuDNN itself; name a program that uses it")
    obstacle = _find_obstacle(path, elf, program=program) or _find_other_library(elf)
    if obstacle:
        return Finding(subject, False, obstacle)
    if SONAME in elf.needed:
        return Finding(subject, *_examine_linked(path, elf))
    answer = _examine_symbols(elf) or _examine_texts(path, elf)
    if answer is None:
        text = "does not mention cuDNN, but a library that it loads may: name that library, such as torch"
        return Finding(subject, None, text, uses_cudnn=False)
    return Finding(subject, *answer)


def written_for_8(elf: Elf) -> bool:
    """Return whether a library forwards calls to cuDNN, some of which cuDNN 9 has dropped."""
    return bool(elf.calls & DROPPED) and "cudnnGetVersion" in elf.exports


def _find_companion_for_8(path: Path, elf: Elf) -> str | None:
    """Return a library written for cuDNN 8 that a file needs and that is in the same folder, or None."""
    neighbours = (path.parent / needed for needed in elf.needed if "/" not in needed)
    return next((file.name for file in neighbours if file.is_file() and written_for_8(read_elf(file))), None)


def _find_obstacle(path: Path, elf: Elf, *, program: bool) -> str | None:
    """Return why the drop-in cannot work for a file, or None if it may."""
    ours = read_elf(shim_path()).machine
    if elf.machine != ours:
        return f"is for {elf.machine}, mucudnn's library for {ours}: the loader ignores it"
    if program and elf.interpreter is None:
        return "is linked statically: no loader runs that could preload a library"
    if program and _is_privileged(path):
        return (
            "runs with privileges of its own (setuid, setgid or capabilities): the loader ignores LD_PRELOAD"
        )
    return None


def _find_other_library(elf: Elf) -> str | None:
    """Return why a file gets another cuDNN than the drop-in, or None if it does not."""
    if written_for_8(elf):
        called = min(elf.calls & DROPPED)
        return f"is written for cuDNN 8, because it calls {called}: mucudnn stands in for cuDNN 9 only"
    if any(name.startswith("cudnnCreate") for name in elf.exports) and not _has_forwarders(elf):
        return "holds a cuDNN of its own, linked into it: it calls no other library"
    for needed in elf.needed:
        if "/" in needed and "libcudnn" in needed:
            return f"is linked against the path {needed}: the drop-in replaces a name, not a path"
        name = _LINKED_NAME.fullmatch(needed)
        if name and name[3] != "9":
            return f"is linked against {needed}: mucudnn stands in for {SONAME} only"
    return None


def _has_forwarders(elf: Elf) -> bool:
    """Return whether the exported functions of cuDNN are too small to do more than pass a call on."""
    places = sorted(address for name, address in elf.addresses.items() if name in known_functions())
    if "dlsym" not in elf.imports or len(places) < 2:
        return False
    return statistics.median(after - before for before, after in pairwise(places)) <= _FORWARDER


def _is_privileged(path: Path) -> bool:
    if path.stat().st_mode & (stat.S_ISUID | stat.S_ISGID):
        return True
    try:
        return bool(os.getxattr(path, "security.capability"))
    except OSError:
        return False


def _examine_linked(path: Path, elf: Elf) -> Answer:
    """Ask the loader which libcudnn.so.9 it would load, without starting the program.

    Only the system's loader is run, because an untrusted program can name any file as its loader.
    """
    if elf.interpreter is not None and os.path.realpath(elf.interpreter) not in _system_loaders():
        text = f"asks for the loader {elf.interpreter}, which is not the system's: it was not run"
        return None, f"linked against {SONAME}; {text}"
    if elf.auditors:
        text = f"brings the auditor {elf.auditors[0]} along, which the loader would run: it was not asked"
        return None, f"linked against {SONAME}; {text}"
    without = _ask_loader(path, elf, without_preload())
    under = _ask_loader(path, elf, preloading(shim_path(), dict(os.environ)))
    own = f"linked against {SONAME}; alone it gets {without or 'none: it is not found'}"
    if under is None or not os.path.samefile(under, shim_path()):
        return False, f"{own}; under mucudnn run the loader still takes {under or 'none'}"
    real = chosen_library() or without
    if real is None:
        # The program that loads this library may have loaded a cuDNN already.
        return None, f"{own}; where nothing else brings one, set MUCUDNN_LIBRARY"
    return True, f"{own}; under mucudnn run it gets mucudnn's library in front of {real}"


def _system_loaders() -> set[str]:
    """Return the paths of this Python's loader and of the loader at the usual place."""
    ours = read_python()
    usual = {"x86_64": "/lib64/ld-linux-x86-64.so.2", "aarch64": "/lib/ld-linux-aarch64.so.1"}
    return {os.path.realpath(path) for path in (ours.interpreter, usual.get(ours.machine)) if path}


def _ask_loader(path: Path, elf: Elf, environment: dict[str, str]) -> Path | None:
    """Return the path of the libcudnn.so.9 that the loader takes for a file, or None if it finds none."""
    loader = elf.interpreter or read_python().interpreter
    if loader is None:
        return None
    libraries = trace_loader(loader, path.resolve(), environment)
    return next((library for library in libraries if library.name == SONAME), None)


def _examine_symbols(elf: Elf) -> Answer | None:
    """Return the answer about a file that calls cuDNN without naming the library, or None for others."""
    if _has_forwarders(elf):
        count = sum(name in known_functions() for name in elf.exports)
        text = f"exports {count} functions of cuDNN that only pass calls on"
        return True, f"{text}; under mucudnn run its calls go to mucudnn's library"
    if not elf.imports & known_functions():
        return None
    renamed = [needed for needed in elf.needed if _LINKED_NAME.fullmatch(needed)]
    source = f"linked against {renamed[0]}, a renamed {SONAME}" if renamed else "takes cuDNN from its loader"
    return True, f"{source}; under mucudnn run its calls go to mucudnn's library"


def _find_mentions(data: mmap.mmap | bytes) -> Iterator[str]:
    """Yield the names and paths of a libcudnn.so in a file.

    Searching for the end of each path first means that a large file is read only once.
    """
    for match in re.finditer(rb"libcudnn\.so[.\d]*", data):
        before = data[max(0, match.start() - 4096) : match.start()][::-1]
        folder = re.match(rb"[\w./+-]*", before)
        assert folder  # the pattern matches the empty text, too
        yield (folder[0][::-1] + match[0]).decode()


def _examine_texts(path: Path, elf: Elf) -> Answer | None:
    """Guess from the texts in a file whether it opens cuDNN at run time; None if none of them is cuDNN's."""
    with mapped(path) as data:
        names = set(_find_mentions(data))
        in_code = _NAME_IN_CODE.search(data) is not None
        functions = {match[1].decode() for match in _NAME_OF_A_FUNCTION.finditer(data)} & known_functions()
    paths = sorted(name for name in names if name.startswith("/"))
    gets = "and gets mucudnn's library under mucudnn run"
    if paths:
        return False, f"holds the path {paths[0]}: a library opened by its path escapes the drop-in"
    if SONAME in names:
        return True, f"opens {SONAME} by its name, {gets}"
    if names:
        return False, f"holds the name {min(names)}: mucudnn stands in for {SONAME} only"
    if not functions:
        return None
    if in_code:
        return True, f"opens {SONAME} by a name that its code puts together, {gets}"
    if companion := _find_companion_for_8(path, elf):
        return False, f"needs {companion}, which is written for cuDNN 8: mucudnn stands in for cuDNN 9 only"
    if "cudnn" in elf.search_path:
        # The loader searches these folders only for names.
        text = f"opens {SONAME} by its name, because it names functions and a folder of cuDNN's"
        return True, f"{text}, {gets}"
    return None, f"names functions of cuDNN, but no library: if it opens {SONAME}, it gets mucudnn's library"
