"""Files that commands and functions write for their users."""

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mucudnn.errors import MucudnnError


def write_lines(path: Path, lines: Iterable[str], what: str = "") -> None:
    """Write a file, whole or not at all. Raises MucudnnError; its message calls the file `what`."""
    # A device such as /dev/stdout, or a link, must not be replaced by a file.
    in_place = os.path.islink(path) or (os.path.exists(path) and not os.path.isfile(path))
    written = path if in_place else path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with written.open("w", encoding="utf-8") as file:
            file.writelines(lines)
        if not in_place:
            written.replace(path)
    except (OSError, ValueError) as error:  # a ValueError if no system could have such a path
        if not in_place:
            # The new file may not exist. The user needs the first error, not this one.
            with suppress(OSError, ValueError):
                written.unlink()
        reason = error.strerror if isinstance(error, OSError) else error
        raise MucudnnError(f"{what} {path} cannot be written: {reason}".lstrip()) from None
