"""Files that commands and functions write for their users."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mucudnn.errors import MucudnnError


def write_lines(path: Path, lines: Iterable[str], what: str = "") -> None:
    """Write the file whole or not at all. Raises MucudnnError, which calls it `what`."""
    # What is no file, such as /dev/stdout, or a link to one, must stay what it is.
    in_place = os.path.islink(path) or (os.path.exists(path) and not os.path.isfile(path))
    written = path if in_place else path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with written.open("w", encoding="utf-8") as file:
            file.writelines(lines)
        if not in_place:
            written.replace(path)
    except (OSError, ValueError) as error:  # a ValueError for a path that no system takes
        if not in_place:
            # It may not even have been made; the first error is the one to tell.
            with suppress(OSError, ValueError):
                written.unlink()
        reason = error.strerror if isinstance(error, OSError) else error
        raise MucudnnError(f"{what} {path} cannot be written: {reason}".lstrip()) from None
