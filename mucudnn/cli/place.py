"""`mucudnn place`: place a network's operations on several devices."""

import argparse
from typing import Any

from mucudnn.cli import options, outputs
from mucudnn.cli.terminal import show, show_json, table
from mucudnn.errors import UsageError
from mucudnn.measuring.modelled_device import DEVICES, ModelledDevice, find_device
from mucudnn.output.text import milliseconds, ratio
from mucudnn.plans.devices.placing import PlacedNetwork, place_network
from mucudnn.plans.memory.costs import model_costs
from mucudnn.problems.sources import TRAINABLE, read_network
from mucudnn.sizes import format_size, parse_size
from mucudnn.solver.devices.pipelines import PeerLink

HELP = "place a network's operations on several devices"
DESCRIPTION = (
    "Decides on which of several equal devices each operation of a training step runs, and in which order, "
    "so that the step ends early. Shows what model parallelism gains on this network before anybody builds "
    "it. Costs are modelled by the roofline of a device."
)
EXAMPLES = (
    "mucudnn place googlenet --device titanx --bandwidth 150GiB",
    "mucudnn place net.network --devices 4 --memory 16GiB",
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument("network", metavar="NETWORK|FILE", help=f"{', '.join(TRAINABLE)}; or a network file")
    parser.add_argument(
        "--devices", type=options.checked(parse_devices), default=2, metavar="M", help="devices (default: 2)"
    )
    add_model_options(parser)
    parser.add_argument(
        "--memory", type=options.checked(parse_size), metavar="SIZE", help="memory of each device"
    )
    parser.add_argument(
        "--exact", action="store_true",
        help="let operations without a branch between them run on different devices; slow",
    )  # fmt: skip
    outputs.add_plot(parser)
    options.add_json(parser)


def add_model_options(parser: argparse.ArgumentParser) -> None:
    """Declare the options of the model of a network's costs."""
    parser.add_argument("--device", choices=DEVICES, default="h200", help="modelled device (default: h200)")
    parser.add_argument(
        "--bandwidth", type=options.checked(options.parse_bandwidth), default=25 * 2**30, metavar="SIZE",
        help="bytes per second from one device to another (default: 25GiB)",
    )  # fmt: skip
    parser.add_argument(
        "--latency", type=options.checked(_parse_latency), default=0.01, metavar="MS",
        help="milliseconds until a transfer begins to arrive (default: 0.01)",
    )  # fmt: skip
    parser.add_argument(
        "--batch", type=options.checked(options.parse_batch), metavar="N",
        help="mini-batch size of a bundled network (default: 64)",
    )  # fmt: skip


def run(arguments: argparse.Namespace) -> None:
    """Place the network and print the result as a table or as JSON."""
    outputs.check_plot(arguments)
    device = find_device(arguments.device)
    result = place_from_options(arguments, arguments.network, arguments.devices)
    if arguments.plot:
        from mucudnn.report.command_plots import write_placement

        title = f"{arguments.network} on {arguments.devices} devices, {device.name}, modelled"
        write_placement(result, arguments.devices, title, arguments.plot)
    if arguments.json:
        show_json(_make_json(arguments, device, result))
        return
    placement = result.placement
    rows = table(">device", ">operations", ">busy ms", ">share", ">memory")
    for number in range(arguments.devices):
        own = [o for o, d in zip(result.operations, placement.devices, strict=True) if d == number]
        busy = sum(operation.time_ms for operation in own)
        share = busy / placement.time_ms if placement.time_ms else 0.0
        memory = format_size(sum(operation.memory for operation in own))
        rows.add_row(str(number), str(len(own)), milliseconds(busy), f"{share:.0%}", memory)
    show(
        f"{arguments.network}: {len(result.steps)} operations with their backward passes on "
        f"{arguments.devices} devices",
        f"on {device.name}, modelled ({device.source}); link {format_size(arguments.bandwidth)}/s and "
        f"{arguments.latency} ms, given",
        "",
        rows,
        "",
        f"One device: {milliseconds(result.one_device_ms)} ms. {arguments.devices} devices: "
        f"{milliseconds(placement.time_ms)} ms, {ratio(result.speedup)}; "
        f"{_describe_bound(result, arguments.exact)}.",
    )


def place_from_options(arguments: argparse.Namespace, source: str, devices: int) -> PlacedNetwork:
    """Return the placement of a network that the model options describe."""
    network = read_network(source, batch=arguments.batch)
    costs = model_costs(network, find_device(arguments.device), divide=False)
    link = PeerLink(arguments.latency, arguments.bandwidth)
    limits = {name: getattr(arguments, name) for name in ("memory", "exact") if hasattr(arguments, name)}
    return place_network(network, costs, devices, link, **limits)


def parse_devices(text: str) -> int:
    """Parse a number of devices. Raises UsageError."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text[:9]) <= 64:
        raise UsageError(f"'{text}' is not a number of devices: give 1 to 64")
    return int(text)


def _parse_latency(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e6:
        raise UsageError(f"'{text}' is not a latency: give milliseconds, such as 0.01")
    return value


def _describe_bound(result: PlacedNetwork, exact: bool) -> str:
    placement = result.placement
    best = (
        "optimal"
        if placement.is_proven
        else f"no placement takes less than {milliseconds(placement.bound_ms)} ms"
    )
    return best if exact else f"{best} if operations without a branch between them stay together"


def _make_json(
    arguments: argparse.Namespace, device: ModelledDevice, result: PlacedNetwork
) -> dict[str, Any]:
    placement = result.placement
    columns = zip(result.steps, result.operations, placement.devices, placement.starts_ms, strict=True)
    return {
        "network": arguments.network,
        "devices": arguments.devices,
        "device": device.name,
        "costs": "modelled",
        "link": {"bandwidth": arguments.bandwidth, "latency_ms": arguments.latency, "source": "given"},
        "one_device_ms": result.one_device_ms,
        "time_ms": placement.time_ms,
        "bound_ms": placement.bound_ms,
        "is_proven": placement.is_proven,
        "merges_chains": not arguments.exact,
        "speedup": result.speedup,
        "operations": [
            {"name": name, "device": on, "start_ms": start, "time_ms": step.time_ms, "memory": step.memory}
            for name, step, on, start in columns
        ],
    }
