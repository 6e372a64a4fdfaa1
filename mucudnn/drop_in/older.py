"""The search for a cuDNN 8 that a command would use, before the command is started."""

import re
from collections.abc import Iterator
from pathlib import Path

from mucudnn.drop_in.elf import NotElfError, mapped, read_elf
from mucudnn.drop_in.findings import written_for_8
from mucudnn.drop_in.libraries import find_interpreter, list_linked
from mucudnn.errors import MucudnnError
from mucudnn.input import read_bytes

_PYTHON = re.compile(r"python[\d.]*")
_IMPORT = re.compile(r"^\s*(?:import|from)\s+(?:tensorflow|keras|tf_keras)\b", re.MULTILINE)
_MOST_BYTES = 16 * 2**20  # larger than any script
_INTERPRETERS = 4  # scripts that run scripts, as many as Linux allows
_TENSORFLOW = "lib/python3*/site-packages/tensorflow/libtensorflow_framework.so.2"


def find_library_for_8(program: Path, arguments: list[str]) -> Path | None:
    """Return a library written for cuDNN 8 that a command would load, or None if none is found.

    The search covers the libraries that the program is linked against and, if a Python script imports it,
    TensorFlow. It misses libraries that the program opens later, whose calls the drop-in passes on.
    """
    for _ in range(_INTERPRETERS):
        if _PYTHON.fullmatch(program.name) or (interpreter := find_interpreter(program)) is None:
            break
        program, arguments = interpreter, [str(program), *arguments]
    is_python = _PYTHON.fullmatch(program.name)
    for library in _libraries_of_python(program, arguments) if is_python else list_linked(program):
        try:
            with mapped(library) as data:
                mentions = data.find(b"cudnn") >= 0
            if mentions and written_for_8(read_elf(library)):
                return library
        except (NotElfError, OSError):  # if the program needs it, the loader reports the error
            continue
    return None


def _libraries_of_python(program: Path, arguments: list[str]) -> Iterator[Path]:
    """Yield TensorFlow's library in the interpreter's environment, if the script imports TensorFlow."""
    if any(map(_IMPORT.search, _texts(arguments))):
        yield from program.parent.parent.glob(_TENSORFLOW)


def _texts(arguments: list[str]) -> Iterator[str]:
    """Yield the text of the program that Python runs: the argument of -c, or the script."""
    for i, argument in enumerate(arguments):
        if argument == "-c":
            yield from arguments[i + 1 : i + 2]
            return
        if not argument.startswith("-"):
            path = Path(argument)
            try:
                # A pipe or terminal can be read only once, and Python must read it.
                if not (path.is_fifo() or path.is_char_device()):
                    yield read_bytes(path, most=_MOST_BYTES).decode(errors="replace")
            except OSError:  # the value of an option, or a missing file, which Python reports
                continue
            except MucudnnError:  # a file that is larger than a script can be
                pass
            return
