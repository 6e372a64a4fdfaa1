"""The journal that the drop-in writes beside its cache, and how tests change its times."""

import re
from collections.abc import Callable
from pathlib import Path


def journal_in(folder: Path) -> Path:
    return folder / "cache.sqlite.journal"


def without_knobs(algorithm: str) -> str:
    return algorithm.partition("_k")[0]


def set_times(folder: Path, time: Callable[[int, str], float]) -> None:
    """Replace the journal's times by those for each micro-batch size and algorithm, with any knobs."""

    def changed(match: re.Match[str]) -> str:
        size, algorithm = int(match[1]), match[2]
        return f"1*{size}:{algorithm}:{time(size, without_knobs(algorithm))}:"

    text = journal_in(folder).read_text()
    journal_in(folder).write_text(re.sub(r"1\*(\d+):([^:]+):[^:]+:", changed, text))
