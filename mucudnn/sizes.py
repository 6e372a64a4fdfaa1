"""Sizes of memory as people write them: `64MiB`, `1.5GiB`, `0`, plain bytes, `none`."""

import re
from fractions import Fraction

from mucudnn.errors import UsageError

_UNITS = {"": 0, "B": 0, "KiB": 1, "MiB": 2, "GiB": 3, "TiB": 4}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)


def parse_size(text: str) -> int:
    """Bytes, rounded down. Raises UsageError."""
    match = _SIZE.fullmatch(text.strip())
    if match is None or match[2] not in _UNITS:
        raise UsageError(
            f"'{text}' is not a size: write bytes, or a number with KiB, MiB, GiB or TiB, such as 64MiB"
        )
    size = int(Fraction(match[1]) * 1024 ** _UNITS[match[2]])
    if size >= 2**63:
        raise UsageError(f"the size '{text}' is above 2^63 bytes")
    return size


def parse_limit(text: str) -> int | None:
    """Bytes, or None for `none`: no limit. Raises UsageError."""
    return None if text.strip() == "none" else parse_size(text)


def format_size(size: int | None) -> str:
    """`64 MiB`, `512 B`, `none`; three significant digits."""
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
    """The exact limit as a flag takes it: `64MiB`, `1000`, `none`."""
    if size is None:
        return "none"
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        if size and size % 1024 ** _UNITS[unit] == 0:
            return f"{size // 1024 ** _UNITS[unit]}{unit}"
    return str(size)
