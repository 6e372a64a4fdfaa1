"""Files that users name: read whole, up to a limit."""

import os
from pathlib import Path

from mucudnn.errors import MucudnnError
from mucudnn.sizes import format_size

MOST_BYTES = 256 * 2**20  # native/core/locked_file.cpp has the same limit for the drop-in
MOST_BYTES_OF_LINES = 16 * 2**20  # lines become Python objects, which are 30 times as large


def read_text(path: Path, encoding: str = "utf-8", *, most: int = MOST_BYTES) -> str:
    """Return the text of a file. A pipe is read too, but nobody waits for a writer that is not there.

    Raises OSError, UnicodeDecodeError, and MucudnnError for a file of more than `most` bytes.
    """
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
        os.set_blocking(file.fileno(), True)
        is_larger = os.fstat(file.fileno()).st_size > most
        content = b"" if is_larger else file.read(most + 1)
    if is_larger or len(content) > most:
        raise MucudnnError(f"{path} is too large: it may have {format_size(most)} at most")
    return content.decode(encoding)
