"""Files that commands and functions write for their users."""

import os
import re
import secrets
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from mucudnn.errors import MucudnnError

# Control characters except the end of a line, and characters that turn the direction of writing.
_UNPRINTABLE = re.compile("[\\x00-\\x09\\x0b-\\x1f\\x7f-\\x9f\\u202a-\\u202e\\u2066-\\u2069]")


def printable(text: str) -> str:
    """Return a text whose control characters are spelled, because a terminal would obey them."""
    return _UNPRINTABLE.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def _make(path: str, flags: int) -> int:
    """Open a file that must not exist yet: in a shared folder it could be a link to any file."""
    return os.open(path, flags | os.O_EXCL | os.O_NOFOLLOW, 0o666)


def write_lines(path: Path, lines: Iterable[str], what: str = "") -> None:
    """Write a file, whole or not at all. Raises MucudnnError; its message calls the file `what`."""
    # A device such as /dev/stdout, or a link, must not be replaced by a file.
    in_place = os.path.islink(path) or (os.path.exists(path) and not os.path.isfile(path))
    written = path if in_place else path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    made = False
    try:
        with open(written, "w", encoding="utf-8", opener=None if in_place else _make) as file:
            made = not in_place
            file.writelines(lines)
        if not in_place:
            written.replace(path)
    except (OSError, ValueError) as error:  # a ValueError if no system could have such a path
        if made:
            # The new file may not exist. The user needs the first error, not this one.
            with suppress(OSError, ValueError):
                written.unlink()
        reason = error.strerror if isinstance(error, OSError) else error
        raise MucudnnError(f"{what} {path} cannot be written: {reason}".lstrip()) from None
