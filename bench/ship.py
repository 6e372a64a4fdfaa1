"""`python -m bench.ship FOLDER`: the measurements of a GPU's results into those that the package ships.

Of two rows about the same the one measured later stays, and of all of them those that some limit would
choose: they decide the same, and of some fifty engines they are a few.
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

SHIPPED = Path(__file__).parents[1] / "mucudnn" / "costs" / "data"


def ship(measurements: Path, shipped: Path) -> Path:
    """Add the rows of a `measurements.jsonl.gz` to the file of its machine, which is returned.

    Raises MucudnnError where they are not of one machine, or where a file is damaged.
    """
    rows: list[Row] = []
    if measurements.exists():
        with gzip.open(measurements, "rt", encoding="utf-8") as lines:
            rows = list(parse_rows(lines, str(measurements)))
    machines = {_machine(row) for row in rows}
    if len(machines) != 1:
        names = ", ".join(sorted(map(str, machines))) or "no measurements"
        raise MucudnnError(f"{measurements} is to have the measurements of one machine: it has {names}")
    (machine,) = machines
    file = shipped / file_name(machine)
    system = SystemDatabase(shipped)
    before = system.rows_of(file.stem) if file.stem in system.names() else ()
    with Cache.in_memory(Path("none")) as cache:
        cache.merge(chain(before, rows))
        file.write_text("".join(format_rows(_useful(cache.rows()))), "utf-8")
    return file


def _useful(rows: Iterable[Row]) -> Iterator[Row]:
    """Of each kernel at each size what is faster than all that needs no more; where nothing ran, all."""
    fastest: dict[tuple[object, ...], float] = {}
    measured = [values for kind, values in rows if kind is MEASUREMENT]
    for values in sorted(measured, key=_leanest_first):
        key, ms = (values["problem"], values["pass"], values["micro_batch"]), values["median_ms"]
        if key not in fastest or (ms is not None and ms < fastest[key]):
            yield MEASUREMENT, values
        if ms is not None:
            fastest[key] = min(ms, fastest.get(key, ms))


def _leanest_first(values: dict[str, Any]) -> tuple[Any, ...]:
    ms = values["median_ms"]
    kernel = values["problem"], values["pass"], -values["micro_batch"]
    return *kernel, ms is None, values["workspace"], ms or 0.0, values["algorithm"]


def _machine(row: Row) -> Machine:
    values = row[1]
    return Machine(values["engine"], values["device"], values["library"], values["threads"])


def main() -> None:
    """Add the rows of each folder."""
    parser = argparse.ArgumentParser(prog="python -m bench.ship", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="under bench/results/")
    for folder in parser.parse_args().folders:
        try:
            file = ship(folder / "measurements.jsonl.gz", SHIPPED)
        except MucudnnError as error:
            raise SystemExit(str(error)) from None
        print(f"{file}: {file.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
