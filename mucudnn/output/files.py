"""Files that a command writes, whole or not at all."""

import os
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path, PosixPath

from mucudnn.errors import MucudnnError, raised_here
from mucudnn.output.streams import path_of_results


class NewFile(PosixPath):
    """The path of a file that a command writes, which it names in the end."""


def _make(path: str, flags: int) -> int:
    """Open a file that must not exist yet: in a shared folder it could be a link to any file."""
    return os.open(path, flags | os.O_EXCL | os.O_NOFOLLOW, 0o666)


def write_lines(path: Path, lines: Iterable[str], what: str = "") -> None:
    """Write a file, whole or not at all. Raises MucudnnError, whose message calls the file `what`."""
    path = path_of_results(path)
    # A device such as /dev/stdout, or a link, must not be replaced by a file.
    in_place = os.path.islink(path) or (os.path.exists(path) and not os.path.isfile(path))
    written = path if in_place else path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    try:
        with open(written, "w", encoding="utf-8", opener=None if in_place else _make) as file:
            file.writelines(lines)
        if not in_place:
            written.replace(path)
    except BaseException as error:
        if not in_place and not isinstance(error, FileExistsError):
            # The new file may not exist, but the user must see the first error.
            with suppress(OSError, ValueError):
                written.unlink()
        # A path that no system allows raises a ValueError.
        if isinstance(error, raised_here(OSError, ValueError)) and not isinstance(error, MucudnnError):
            reason = error.strerror if isinstance(error, OSError) else error
            raise MucudnnError(f"{what} {path} cannot be written: {reason}".lstrip()) from None
        raise
