"""The race on all recorded networks; `--record NETWORK` makes the record of a network first."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from bench.lib.record import Record
from bench.suites.core.race.drop_in import drop_in_records, gpu_records
from bench.suites.core.race.recorded import TABLES, read_tables, records


def add_options(parser: argparse.ArgumentParser) -> None:
    """Declare the network to record."""
    parser.add_argument("--record", metavar="NETWORK", help="record this network of torchvision first")
    parser.add_argument("--batch", type=int, default=16, help="its mini-batch (default: 16)")


def measure(options: argparse.Namespace) -> Iterator[Record]:
    """Play the race on all recorded networks."""
    if options.record:
        from bench.suites.core.race.recording import make_tables  # needs PyTorch

        TABLES.mkdir(exist_ok=True)
        path = TABLES / f"{options.record}-{options.batch}.jsonl.gz"
        make_tables(options.record, options.batch, path)
    for path in sorted(TABLES.glob("*.jsonl.gz")):
        name, tables = path.name.partition(".")[0], read_tables(path)
        yield from records(name, tables)
        yield from drop_in_records(name, tables)
    yield from gpu_records()
