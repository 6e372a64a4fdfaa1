"""Add the measurements of a GPU's results to those that the package ships.

If two rows measure the same, the later one stays. Of these rows only those are shipped that the decision can
use under some limit. These are a few of some fifty engines, and they give the same decisions.
"""

from __future__ import annotations

import argparse
import gzip
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from mucudnn.costs.cache import Cache
from mucudnn.costs.exchange import format_rows, parse_rows
from mucudnn.costs.records import Machine
from mucudnn.costs.schema import MEASUREMENT, Row
from mucudnn.costs.shipped import SystemDatabase, file_name
from mucudnn.errors import MucudnnError

SHIPPED = Path(__file__).parents[3] / "mucudnn" / "costs" / "data"


def ship(measurements: Path, shipped: Path) -> Path:
    """Add the rows of a `measurements.jsonl.gz` to its machine's file in `shipped`, and return that file.

    Raises MucudnnError if the rows are not of exactly one machine, or if a file is damaged.
    """
    rows: list[Row] = []
    if measurements.exists():
        with gzip.open(measurements, "rt", encoding="utf-8") as lines:
            rows = list(parse_rows(lines, str(measurements)))
    machines = {_machine(row) for row in rows}
    if len(machines) != 1:
        names = ", ".join(sorted(map(str, machines))) or "no measurements"
        raise MucudnnError(f"{measurements} must have the measurements of one machine: it has {names}")
    (machine,) = machines
    file = shipped / file_name(machine)
    system = SystemDatabase(shipped)
    before = system.rows_of(file.stem) if file.stem in system.names() else ()
    with Cache.in_memory(Path("none")) as cache:
        cache.merge(chain(before, rows))
        file.write_text("".join(format_rows(_useful(cache.rows()))), "utf-8")
    return file


def _useful(rows: Iterable[Row]) -> Iterator[Row]:
    """Yield the rows that are faster than all rows of the same kernel and size with at most their workspace.

    If nothing ran, yield all rows of the kernel and size.
    """
    fastest: dict[tuple[object, ...], float] = {}
    measured = [values for kind, values in rows if kind is MEASUREMENT]
    for values in sorted(measured, key=_leanest_first):
        key, ms = (values["problem"], values["pass"], values["micro_batch"]), values["time_ms"]
        if key not in fastest or (ms is not None and ms < fastest[key]):
            yield MEASUREMENT, values
        if ms is not None:
            fastest[key] = min(ms, fastest.get(key, ms))


def _leanest_first(values: dict[str, Any]) -> tuple[Any, ...]:
    ms = values["time_ms"]
    kernel = values["problem"], values["pass"], -values["micro_batch"]
    return *kernel, ms is None, values["workspace"], ms or 0.0, values["algorithm"]


def _machine(row: Row) -> Machine:
    values = row[1]
    return Machine(values["engine"], values["device"], values["library"], values["threads"])


def main() -> None:
    """Ship the measurements of each folder, and print the changed files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="under bench/results/")
    for folder in parser.parse_args().folders:
        try:
            file = ship(folder / "measurements.jsonl.gz", SHIPPED)
        except MucudnnError as error:
            raise SystemExit(str(error)) from None
        print(f"{file}: {file.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
