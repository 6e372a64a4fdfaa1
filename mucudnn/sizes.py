"""Memory sizes in the forms that people write: `64MiB`, `1.5GiB`, `64mb`, plain bytes, `none`."""

import re

from mucudnn.errors import UsageError

_UNITS = {"": 1, "b": 1}
_UNITS |= {f"{prefix}b": 1000**power for power, prefix in enumerate("kmgt", 1)}
_UNITS |= {f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)}
_MOST_DIGITS = 20
_BLANKS = " \t\n\r\f\v"  # the same as in the drop-in, which reads the same texts
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]*)", re.ASCII)


def parse_size(text: str) -> int:
    """Return the bytes that a text gives, rounded down. Raises UsageError.

    MB are 10^6 bytes, and MiB 2^20. A number below 1024 needs a unit, because few people mean bytes by it.
    `torch.compile` traces this function, which it could not do with the drop-in's parser of the same texts.
    """
    match = _SIZE.fullmatch(text.strip(_BLANKS))
    unit = None if match is None else _UNITS.get(match[2].lower())
    if match is None or unit is None:
        raise UsageError(f"'{text}' is not a size: give a number with KiB, MiB, GiB or TiB, such as 64MiB")
    whole, _, decimals = match[1].partition(".")
    if len(whole + decimals) > _MOST_DIGITS:
        raise UsageError(f"the size '{text[:20]}…' has more than {_MOST_DIGITS} digits")
    size: int = int(whole + decimals) * unit // 10 ** len(decimals)
    if size >= 2**63:
        raise UsageError(f"the size '{text}' is too large: it must be below 2^63 bytes")
    if 0 < size < 1024 and not match[2]:
        raise UsageError(f"the size '{text}' has no unit: write {size}MiB, or {size}B for bytes")
    return size


def parse_limit(text: str) -> int | None:
    """Return the bytes that a text gives, or None for `none` (no limit). Raises UsageError."""
    return None if text.strip(_BLANKS) == "none" else parse_size(text)


def round_up(size: int, block: int) -> int:
    """Return the least number of bytes that whole blocks have and that is not below `size`."""
    return -(-size // block) * block


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
    """Write a limit exactly, in the form that a flag takes: `64MiB`, `1000B`, `none`."""
    if size is None:
        return "none"
    for unit in ("TiB", "GiB", "MiB", "KiB"):
        scale = _UNITS[unit.lower()]
        if size and size % scale == 0:
            return f"{size // scale}{unit}"
    return f"{size}B"
