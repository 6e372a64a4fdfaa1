"""The journal that the drop-in writes beside its cache, and how tests change its times."""

from collections.abc import Callable
from pathlib import Path

from bench.lib import journal
from bench.lib.journal import with_time as with_time


def journal_in(folder: Path) -> Path:
    return folder / "cache.sqlite.journal"


def without_knobs(algorithm: str) -> str:
    return algorithm.partition("_k")[0]


def edit_rows(folder: Path, edit: Callable[[int, str, str], str]) -> None:
    """Replace each measurement's line in the journal by that for its micro-batch size and algorithm."""
    journal.edit_rows(journal_in(folder), edit)


def rows_in(folder: Path) -> list[tuple[int, str]]:
    """Return the micro-batch size and the algorithm of each measurement in the journal."""
    rows: list[tuple[int, str]] = []

    def note(size: int, algorithm: str, line: str) -> str:
        rows.append((size, algorithm))
        return line

    edit_rows(folder, note)
    return rows


def set_times(folder: Path, time: Callable[[int, str], float]) -> None:
    """Replace the journal's times by those for each micro-batch size and algorithm, with any knobs."""
    journal.set_times(journal_in(folder), time)
