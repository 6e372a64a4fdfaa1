"""`python -m bench.ship FOLDER`: the measurements of a GPU's results into those that the package ships.

Of two rows about the same the one measured later stays.
"""

from __future__ import annotations

import argparse
import gzip
from itertools import chain
from pathlib import Path

from mucudnn.cache import Cache
from mucudnn.exchange import Row, format_rows, parse_rows
from mucudnn.records import Machine
from mucudnn.system_database import SystemDatabase, file_name

SHIPPED = Path(__file__).parents[1] / "mucudnn" / "data"


def ship(measurements: Path, shipped: Path) -> Path:
    """Add the rows of a `measurements.jsonl.gz`, which are of one machine, to its file, which is returned."""
    with gzip.open(measurements, "rt", encoding="utf-8") as lines:
        rows = list(parse_rows(lines, str(measurements)))
    (machine,) = {_machine(row) for row in rows}
    file = shipped / file_name(machine)
    system = SystemDatabase(shipped)
    before = system.rows_of(file.stem) if file.stem in system.names() else ()
    with Cache.in_memory(Path("none")) as cache:
        cache.merge(chain(before, rows))
        file.write_text("".join(format_rows(cache.rows())), "utf-8")
    return file


def _machine(row: Row) -> Machine:
    values = row[1]
    return Machine(values["engine"], values["device"], values["library"], values["threads"])


def main() -> None:
    """Add the rows of each folder."""
    parser = argparse.ArgumentParser(prog="python -m bench.ship", description=__doc__)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="under bench/results/")
    for folder in parser.parse_args().folders:
        file = ship(folder / "measurements.jsonl.gz", SHIPPED)
        print(f"{file}: {file.stat().st_size / 2**20:.1f} MiB")


if __name__ == "__main__":
    main()
