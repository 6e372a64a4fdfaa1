"""Sizes of memory in the forms that people write: `64MiB`, `1.5GiB`, plain bytes, `none`."""

from mucudnn import _native
from mucudnn.errors import UsageError

_UNITS = {"KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4}


def parse_size(text: str) -> int:
    """Return the bytes that a text gives, rounded down. Raises UsageError."""
    try:
        return _native.parse_size(text)
    except ValueError as error:
        raise UsageError(str(error)) from None


def parse_limit(text: str) -> int | None:
    """Return the bytes that a text gives, or None for `none`, which is no limit. Raises UsageError."""
    return None if text.strip() == "none" else parse_size(text)


def format_size(size: int | None) -> str:
    """Write a size for people with three significant digits: `64 MiB`, `512 B`; `none` for None."""
    if size is None:
        return "none"
    value, unit = float(size), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1023.5:
            break
        value, unit = value / 1024, larger
    digits = 0 if value >= 99.5 or value == int(value) else 1 if value >= 9.95 else 2
    return f"{value:.{digits}f} {unit}"


def spell_limit(size: int | None) -> str:
    """Write a limit exactly, in the form that a flag takes: `64MiB`, `1000`, `none`."""
    if size is None:
        return "none"
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % 1024 ** _UNITS[unit] == 0:
            return f"{size // 1024 ** _UNITS[unit]}{unit}"
    return str(size)
