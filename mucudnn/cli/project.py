"""`mucudnn project`: compare data parallelism with hybrid parallelism over a whole training run."""

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any

from mucudnn.cli import options, outputs
from mucudnn.cli.place import add_model_options, parse_devices, place_from_options
from mucudnn.cli.terminal import show, show_json, table
from mucudnn.errors import UsageError
from mucudnn.output.text import ratio
from mucudnn.plans.devices.scaling import ScalingRow, read_scaling
from mucudnn.problems.sources import TRAINABLE
from mucudnn.solver.devices.projection import Strategy, project

HELP = "compare data parallelism with hybrid parallelism over a whole training run"
DESCRIPTION = (
    "Reads a table of data-parallel training runs: devices, milliseconds of a step, epochs. Shows for each "
    "number of devices whether it is better to give several devices to each replica. How much faster several "
    "devices run a step is given with --speedup, or modelled for a network with --network."
)
EXAMPLES = (
    "mucudnn project scaling.csv --speedup 2=1.4",
    "mucudnn project scaling.csv --network googlenet --devices 4 --plot projection.svg",
)
Speedups = dict[int, tuple[float, str]]  # devices of a replica: their speedup, and its source


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "table", type=Path, metavar="TABLE",
        help="comma-separated values with the columns devices, step_ms, epochs, and perhaps source",
    )  # fmt: skip
    parser.add_argument(
        "--speedup", type=options.checked(_parse_speedup), action="append", default=[], metavar="M=S",
        help="M devices run a step S times as fast as one, such as 2=1.32",
    )  # fmt: skip
    parser.add_argument(
        "--network",
        metavar="NETWORK|FILE",
        help=f"place this network: {', '.join(TRAINABLE)}; or a network file",
    )
    parser.add_argument(
        "--devices", type=options.checked(parse_devices), default=2, metavar="M",
        help="the most devices of a replica for --network, which tries 2 up to M (default: 2)",
    )  # fmt: skip
    add_model_options(parser)
    outputs.add_plot(parser)
    options.add_json(parser)


def run(arguments: argparse.Namespace) -> None:
    """Project the training run, print the result as a table or as JSON, and draw it."""
    outputs.check_plot(arguments)
    rows = read_scaling(arguments.table)
    speedups = _find_speedups(arguments)
    try:
        pairs = project([row.training for row in rows], {m: s for m, (s, _) in speedups.items()})
    except ValueError as error:
        raise UsageError(str(error)) from None
    if arguments.plot:
        from mucudnn.report.command_plots import write_projection

        write_projection(pairs, arguments.table.name, arguments.plot)
    if arguments.json:
        show_json(_make_json(rows, speedups, pairs))
        return
    _show(arguments, rows, speedups, pairs)


def _find_speedups(arguments: argparse.Namespace) -> Speedups:
    speedups: Speedups = {}
    if arguments.network:
        for devices in range(2, arguments.devices + 1):
            speedups[devices] = place_from_options(arguments, arguments.network, devices).speedup, "modelled"
    speedups |= {devices: (speedup, "given") for devices, speedup in arguments.speedup}
    if not speedups:
        raise UsageError(
            "no speedup of several devices is known: give --speedup, such as 2=1.3, or --network"
        )
    return speedups


def _show(
    arguments: argparse.Namespace,
    rows: list[ScalingRow],
    speedups: Speedups,
    pairs: list[tuple[Strategy | None, Strategy | None]],
) -> None:
    lines = table(">devices", ">data parallel", ">hybrid", ">replicas × devices", "better")
    for alone, hybrid in pairs:
        devices = alone.devices if alone else hybrid.devices if hybrid else 0
        lines.add_row(
            str(devices),
            ratio(alone.speedup if alone else None),
            ratio(hybrid.speedup if hybrid else None),
            f"{hybrid.replicas} × {hybrid.devices_each}" if hybrid else "–",
            _faster_way(alone, hybrid),
        )
    sources = sorted({row.source for row in rows})
    known = ", ".join(f"{m} devices {ratio(s)} ({source})" for m, (s, source) in sorted(speedups.items()))
    show(
        f"{arguments.table}: the training's speed over one device",
        f"scaling table: {', '.join(sources)}; a replica on {known}",
        "",
        lines,
    )


def _faster_way(alone: Strategy | None, hybrid: Strategy | None) -> str:
    if alone is None or hybrid is None:
        return ""
    if hybrid.speedup > alone.speedup:
        return f"hybrid, by {hybrid.speedup / alone.speedup - 1:.1%}"
    return "data parallel"


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


def _make_json(
    rows: list[ScalingRow], speedups: Speedups, pairs: list[tuple[Strategy | None, Strategy | None]]
) -> dict[str, Any]:
    return {
        "table": [{**asdict(row.training), "source": row.source} for row in rows],
        "model_speedups": [
            {"devices": m, "speedup": s, "source": source} for m, (s, source) in sorted(speedups.items())
        ],
        "projection": [
            {
                "devices": alone.devices if alone else hybrid.devices if hybrid else 0,
                "data_parallel": asdict(alone) if alone else None,
                "hybrid": asdict(hybrid) if hybrid else None,
            }
            for alone, hybrid in pairs
        ],
    }
