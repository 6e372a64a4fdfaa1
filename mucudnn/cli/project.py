"""`mucudnn parallel project`: compare data parallelism with hybrid parallelism over a whole training run."""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mucudnn.cli import options, outputs
from mucudnn.cli.place import parse_devices
from mucudnn.cli.terminal import Answer, Lines, table
from mucudnn.errors import UsageError
from mucudnn.output.text import ratio
from mucudnn.plans.devices.scaling import ScalingRow, read_scaling
from mucudnn.solver.devices.projection import Strategy, project

HELP = "compare data parallelism with hybrid parallelism over a whole training run"
DESCRIPTION = (
    "Reads a table of data-parallel training runs: devices, milliseconds of a step, epochs. Shows for each "
    "number of devices whether it is better to give several devices to each replica. How much faster several "
    "devices run a step is given with --speedup; `mucudnn parallel place` models it for a network."
)
EXAMPLES = ("mucudnn parallel project scaling.csv --speedup 2=1.4 --plot projection.svg",)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "table", type=Path, metavar="TABLE",
        help="comma-separated values with the columns devices, step_ms, epochs, and perhaps source",
    )  # fmt: skip
    parser.add_argument(
        "--speedup", type=_parse_speedup, action="append", required=True, metavar="M=S",
        help="M devices run a step S times as fast as one, such as 2=1.32; may be repeated",
    )  # fmt: skip
    plot = ("--plot FILE", outputs.PLOT.parse, "draw it into a .svg or .png")
    options.add_arguments(parser, plot, options.JSON)


@dataclass(frozen=True)
class Projected(Answer):
    """The speed of a training on each number of devices: with data parallelism, and hybrid."""

    file: Path
    table: Sequence[ScalingRow]
    speedups: dict[int, float]
    projection: Sequence[tuple[Strategy | None, Strategy | None]]

    def content(self) -> dict[str, Any]:
        """Return the form that docs/reference/json.md describes."""
        return {
            "table": [{**asdict(row.training), "source": row.source} for row in self.table],
            "speedups": [{"devices": m, "speedup": s} for m, s in sorted(self.speedups.items())],
            "projection": [
                {"data_parallel": alone and asdict(alone), "hybrid": hybrid and asdict(hybrid)}
                for alone, hybrid in self.projection
            ],
        }

    def lines(self) -> Lines:
        """Yield a table that names the better strategy."""
        sources = ", ".join(sorted({row.source for row in self.table}))
        known = ", ".join(f"{m} devices {ratio(s)} (given)" for m, s in sorted(self.speedups.items()))
        yield f"{self.file}: the training's speed over one device"
        yield f"scaling table: {sources}; a replica on {known}"
        yield ""
        heads = (">devices", "×>data parallel", "×>hybrid", ">replicas × devices", "better")
        yield table(*heads, rows=self._rows())

    def _rows(self) -> Iterator[Sequence[Any]]:
        for alone, hybrid in self.projection:
            devices = (alone or hybrid).devices  # type: ignore[union-attr]
            better = ""
            if alone and hybrid:
                gain = hybrid.speedup / alone.speedup - 1
                better = f"hybrid, by {gain:.1%}" if gain > 0 else "data parallel"
            split = hybrid and f"{hybrid.replicas} × {hybrid.devices_each}"
            yield devices, alone and alone.speedup, hybrid and hybrid.speedup, split, better


def run(arguments: argparse.Namespace) -> Answer:
    """Project the training run, and draw it."""
    rows, speedups = read_scaling(arguments.table), dict(arguments.speedup)
    try:
        pairs = project([row.training for row in rows], speedups)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if arguments.plot:
        from mucudnn.report.command_plots import write_projection

        write_projection(pairs, arguments.table.name, arguments.plot)
    return Projected(arguments.table, rows, speedups, pairs)


def _parse_speedup(text: str) -> tuple[int, float]:
    devices, _, speedup = text.partition("=")
    try:
        value = float(speedup)
    except ValueError:
        value = -1.0
    if not 0 < value < 1e6:
        raise UsageError(f"'{text}' is not a speedup of several devices: write M=S, such as 2=1.32")
    number = parse_devices(devices)
    if number < 2:
        raise UsageError(f"'{text}' is for {number} device: a replica on one device has the speed 1")
    return number, value
