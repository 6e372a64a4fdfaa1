"""`mucudnn parallel project`: compare data parallelism with hybrid parallelism over a whole training run."""

import argparse
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from mucudnn.cli import options
from mucudnn.errors import UsageError
from mucudnn.output.answers import Answer, Lines, table
from mucudnn.output.text import ratio
from mucudnn.plans.devices.scaling import read_scaling
from mucudnn.solver.devices.projection import Strategy, project

HELP = "compare data parallelism with hybrid parallelism over a whole training run"
DESCRIPTION = (
    "Reads a table of data-parallel training runs: devices, milliseconds of a step, epochs. Shows for each "
    "number of devices whether it is better to give several devices to each replica. How much faster several "
    "devices run a step is given with --speedup; `mucudnn parallel place` models it for a network."
)
EXAMPLES = ("mucudnn parallel project scaling.csv --speedup 2=1.4 --json",)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--speedup", type=_parse_speedup, action="append", required=True, metavar="M=S",
        help="M devices run a step S times as fast as one, such as 2=1.32; may be repeated",
    )  # fmt: skip
    columns = "comma-separated values with the columns devices, step_ms, epochs, and perhaps source"
    options.add_arguments(parser, ("table TABLE", Path, columns), options.JSON)


@dataclass(frozen=True)
class Projected(Answer):
    """The speed of a training on each number of devices: with data parallelism, and hybrid."""

    file: Path
    table: Sequence[dict[str, Any]]
    speedups: dict[int, float]
    projection: Sequence[dict[str, Any]]

    def lines(self) -> Lines:
        """Yield a table that names the better strategy."""
        sources = ", ".join(sorted({row["source"] for row in self.table}))
        known = ", ".join(f"{m} devices {ratio(s)} (given)" for m, s in sorted(self.speedups.items()))
        yield f"{self.file}: the training's speed over one device"
        yield f"scaling table: {sources}; a replica on {known}"
        yield ""
        heads = (">devices", "×>data parallel", "×>hybrid", ">replicas", ">devices each", "better")
        yield table(*heads, rows=self.projection)


def _make_row(alone: Strategy | None, hybrid: Strategy | None) -> dict[str, Any]:
    better = ""
    if alone and hybrid:
        gain = hybrid.speedup / alone.speedup - 1
        better = f"hybrid, by {gain:.1%}" if gain > 0 else "data parallel"
    return {
        "devices": (alone or hybrid).devices,  # type: ignore[union-attr]
        "data_parallel": alone and alone.speedup,
        "hybrid": hybrid and hybrid.speedup,
        "replicas": hybrid and hybrid.replicas,
        "devices_each": hybrid and hybrid.devices_each,
        "better": better,
    }


def run(arguments: argparse.Namespace) -> Answer:
    """Project the training run."""
    rows, speedups = read_scaling(arguments.table), dict(arguments.speedup)
    try:
        pairs = project([row.training for row in rows], speedups)
    except ValueError as error:
        raise UsageError(str(error)) from None
    table_ = [{**asdict(row.training), "source": row.source} for row in rows]
    return Projected(arguments.table, table_, speedups, [_make_row(*pair) for pair in pairs])


def _parse_speedup(text: str) -> tuple[int, float]:
    match = re.fullmatch(r"([0-9]{1,2})=([0-9]{1,6}(?:\.[0-9]{1,9})?)", text)
    if match is None or int(match[1]) < 2 or not float(match[2]):
        raise UsageError(f"'{text}' is not a speedup of several devices: write M=S, such as 2=1.32")
    return int(match[1]), float(match[2])
