"""Files that users name: read whole, up to a limit."""

import io
import os
import zlib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

from mucudnn.errors import ArgumentTypeError, MucudnnError, NewerFileError, UsageError, raised_here, shown
from mucudnn.sizes import format_size

AnyPath = str | os.PathLike[str]
T = TypeVar("T")

MOST_BYTES = 256 * 2**20  # native/core/locked_file.cpp has the same limit for the drop-in
MOST_BYTES_OF_LINES = 16 * 2**20  # lines become Python objects, which are 30 times as large
_PACKERS = {b"\x1f\x8b": "gzip", b"\xfd7zXZ": "lzma", b"BZh": "bz2"}  # modules by how their files begin


def open_without_waiting(path: str, flags: int) -> int:
    """Open a file without waiting for the writer of a pipe. It is an opener for `open`."""
    return os.open(path, flags | os.O_NONBLOCK)


def read_bytes(path: Path, *, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file, or of a pipe without waiting for a writer to open it.

    Raises OSError, and MucudnnError for a file of more than `most` bytes.
    """
    with open(path, "rb", opener=open_without_waiting) as file:
        os.set_blocking(file.fileno(), True)
        is_larger = os.fstat(file.fileno()).st_size > most
        content = b"" if is_larger else file.read(most + 1)
    if is_larger or len(content) > most:
        raise _too_large(path, most)
    return content


def read_text(path: Path, encoding: str = "utf-8", *, most: int = MOST_BYTES) -> str:
    """Return the text of a file, like `read_bytes`. Raises UnicodeDecodeError, too."""
    return read_bytes(path, most=most).decode(encoding)


def read_packed(path: Path, *, most: int = MOST_BYTES) -> bytes:
    """Return the content of a file, decompressed if gzip, xz or bzip2 packed it, like `read_bytes`.

    Raises ValueError for a damaged archive, and MucudnnError for more than `most` bytes, packed or unpacked.
    """
    content: bytes = read_bytes(path, most=most)
    packer = next((name for start, name in _PACKERS.items() if content.startswith(start)), None)
    if packer is None:
        return content
    module: Any = import_module(packer)
    try:
        with module.open(io.BytesIO(content)) as file:
            content = file.read(most + 1)
    except (EOFError, OSError, zlib.error, getattr(module, "LZMAError", EOFError)) as error:
        raise ValueError(f"its archive is damaged: {error}") from None
    if len(content) > most:
        raise _too_large(path, most)
    return content


def read_document(path: AnyPath, kind: str, parse: Callable[[str], T], *, most: int = MOST_BYTES) -> T:
    """Return the result of `parse` for the text of a file, such as a plan. Errors call the file a `kind`.

    `parse` raises ValueError with the wrong line, or NewerFileError. Raises MucudnnError with the file and
    line that cannot be read, NewerFileError with the file, and ArgumentTypeError if `path` is not a path.
    """
    path = path_of(path, kind)
    try:
        text = read_text(path, most=most)
        if text.startswith("\ufeff"):
            raise MucudnnError(f"{path} begins with a byte-order mark: save it as UTF-8 without one")
        return parse(text)
    except raised_here(OSError) as error:
        raise MucudnnError(f"the {kind} {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        ended = error.reason == "unexpected end of data"
        raise MucudnnError(
            f"{path} is cut short" if ended else f"{path} is not a {kind}: it is not text"
        ) from None
    except NewerFileError as error:
        raise NewerFileError(f"{path}: {error}") from None
    except raised_here(ValueError) as error:
        raise MucudnnError(f"{path}: {error}") from None


def refuse_newer(what: str, version: int, newest: int, instead: str = "make it again") -> None:
    """Raise NewerFileError if a file is of a newer version than this mucudnn reads."""
    if version > newest:
        raise NewerFileError(
            f"the {what} is of version {version}, this mucudnn reads up to version {newest}: upgrade "
            f"mucudnn, or {instead}"
        )


def expanded(path: str) -> str:
    """Return a path with the home directory for `~` or `~user` at its start. Raise UsageError."""
    if "\0" in path:
        raise UsageError(f"{shown(path)} is not a path: it has a NUL byte")
    whole = os.path.expanduser(path)
    if whole.startswith("~"):
        home = path.partition("/")[0]
        raise UsageError(f"there is no home directory for '{home}': write './{path}' if a file has this name")
    return whole


def path_of(path: AnyPath, kind: str) -> Path:
    """Return a text, or a path object of any library, as a Path. Raises ArgumentTypeError."""
    if isinstance(path, str | Path):
        return Path(path)
    try:
        return Path(path)
    except Exception:  # another library's __fspath__ may raise any error
        raise ArgumentTypeError(f"path is {shown(path)}, not the path of a {kind}") from None


def _too_large(path: Path, most: int) -> MucudnnError:
    return MucudnnError(f"{path} is too large: it may have {format_size(most)} at most")
