"""The journal that the drop-in writes beside its cache, and how tests change its times."""

import re
from collections.abc import Callable
from pathlib import Path


def journal_in(folder: Path) -> Path:
    return folder / "cache.sqlite.journal"


def without_knobs(algorithm: str) -> str:
    return algorithm.partition("_k")[0]


def edit_rows(folder: Path, edit: Callable[[int, str, str], str]) -> None:
    """Replace each measurement's line in the journal by that for its micro-batch size and algorithm."""
    size, lines = 0, []
    for line in journal_in(folder).read_text().splitlines(keepends=True):
        if match := re.match(r"kernel .*?mb(\d+)", line):
            size = int(match[1])
        elif match := re.match(r"measured ([^:]+):", line):
            line = edit(size, match[1], line)
        lines.append(line)
    journal_in(folder).write_text("".join(lines))


def rows_in(folder: Path) -> list[tuple[int, str]]:
    """Return the micro-batch size and the algorithm of each measurement in the journal."""
    rows: list[tuple[int, str]] = []

    def note(size: int, algorithm: str, line: str) -> str:
        rows.append((size, algorithm))
        return line

    edit_rows(folder, note)
    return rows


def with_time(line: str, time: float) -> str:
    """Return a measurement's line with another time."""
    return re.sub(r"^(measured [^:]+:)[^:]+", rf"\g<1>{time}", line)


def set_times(folder: Path, time: Callable[[int, str], float]) -> None:
    """Replace the journal's times by those for each micro-batch size and algorithm, with any knobs."""
    edit_rows(folder, lambda size, name, line: with_time(line, time(size, without_knobs(name))))
