"""Scaling tables: measured or assumed data-parallel training runs, in a file of comma-separated values."""

import csv
import math
from dataclasses import dataclass
from pathlib import Path

from mucudnn.errors import MucudnnError, raised_here
from mucudnn.input import read_text
from mucudnn.solver.devices.projection import DataParallel

COLUMNS = ("devices", "step_ms", "epochs")
SOURCES = ("measured", "calibrated", "modelled", "given")
_LONGEST = 2**20  # bytes of a table


@dataclass(frozen=True)
class ScalingRow:
    """A row of a scaling table, and where its figures come from: one of `SOURCES`."""

    training: DataParallel
    source: str


def read_scaling(path: Path) -> list[ScalingRow]:
    """Return the rows of a table, the fewest devices first.

    The first line names the columns: devices, step_ms, epochs, and optionally source, by default given.
    Raises MucudnnError with the file and line that cannot be read.
    """
    try:
        text = read_text(path, "utf-8-sig", most=_LONGEST)
    except raised_here(OSError) as error:
        raise MucudnnError(f"the table {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise MucudnnError(f"{path} is not a table: it is not text") from None
    try:
        return _parse(text, path)
    except csv.Error as error:
        raise MucudnnError(f"{path} is not a table: {error}") from None


def _parse(text: str, path: Path) -> list[ScalingRow]:
    lines = csv.DictReader(text.splitlines(), skipinitialspace=True)
    names = [name.strip() for name in lines.fieldnames or ()]
    if not set(COLUMNS) <= set(names) or not set(names) <= {*COLUMNS, "source"}:
        raise MucudnnError(
            f"{path}: the first line must name the columns {', '.join(COLUMNS)} (and source), "
            f"it names {', '.join(names) or 'none'}"
        )
    lines.fieldnames = names
    rows: dict[int, ScalingRow] = {}
    for cells in lines:
        place = f"{path}, line {lines.line_num}"
        row = _parse_row(place, {name: (cells.get(name) or "").strip() for name in names})
        if row.training.devices in rows:
            raise MucudnnError(f"{place}: there is a row for {row.training.devices} devices already")
        rows[row.training.devices] = row
    if 1 not in rows:
        raise MucudnnError(f"{path}: there is no row for 1 device, to which all speeds refer")
    return [rows[devices] for devices in sorted(rows)]


def _parse_row(place: str, cells: dict[str, str]) -> ScalingRow:
    source = cells.get("source") or "given"
    if source not in SOURCES:
        raise MucudnnError(f"{place}: the source is '{source}', must be one of {', '.join(SOURCES)}")
    try:
        figures = [float(cells[name]) for name in COLUMNS]
        if not figures[0].is_integer():
            raise ValueError(f"devices is {cells['devices']}, must be a whole number")
        if not all(math.isfinite(figure) for figure in figures):
            raise ValueError("a figure is not finite")
        return ScalingRow(DataParallel(int(figures[0]), figures[1], figures[2]), source)
    except ValueError as error:
        raise MucudnnError(f"{place}: {error}") from None
