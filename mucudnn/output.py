"""Files that commands and functions write for their users."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mucudnn.errors import MucudnnError


def write_lines(path: Path, lines: Iterable[str], what: str = "") -> None:
    """Write the file whole or not at all. Raises MucudnnError, which calls it `what`."""
    # What is no file, such as /dev/stdout, or a link to one, must stay what it is.
    in_place = path.is_symlink() or (path.exists() and not path.is_file())
    written = path if in_place else path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with written.open("w", encoding="utf-8") as file:
            file.writelines(lines)
        if not in_place:
            written.replace(path)
    except OSError as error:
        if not in_place:
            with suppress(OSError):  # it may not even have been made; the first error is the one to tell
                written.unlink()
        raise MucudnnError(f"{what} {path} cannot be written: {error.strerror}".lstrip()) from None
