"""`mucudnn parallel place`: place a network's operations on several devices."""

import argparse
from dataclasses import dataclass
from typing import Any

from mucudnn.cli import options, outputs
from mucudnn.cli.terminal import Answer, Lines, table
from mucudnn.errors import UsageError
from mucudnn.measuring.modelled_device import DEVICES, find_device
from mucudnn.output.text import milliseconds, ratio
from mucudnn.plans.devices.placing import PlacedNetwork, place_network
from mucudnn.plans.memory.costs import model_costs
from mucudnn.problems.sources import read_network
from mucudnn.sizes import format_size, parse_size
from mucudnn.solver.devices.pipelines import PeerLink

HELP = "place a network's operations on several devices"
DESCRIPTION = (
    "Decides on which of several equal devices each operation of a training step runs, and in which order, "
    "so that the step ends early. Shows what model parallelism gains on this network before anybody builds "
    "it. Costs are modelled by the roofline of a device."
)
EXAMPLES = (
    "mucudnn parallel place googlenet --device titanx --bandwidth 150GiB",
    "mucudnn parallel place net.network --devices 4 --memory 16GiB",
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.set_defaults(devices=2, device="h200", bandwidth=25 * 2**30, latency=0.01)
    options.add_arguments(
        parser,
        options.NETWORK,
        ("--devices M", parse_devices, "devices (default: 2)"),
        ("--device", tuple(DEVICES), "modelled device (default: h200)"),
        (
            "--bandwidth SIZE",
            options.parse_bandwidth,
            "bytes per second from one device to another (default: 25GiB)",
        ),
        ("--latency MS", _parse_latency, "milliseconds until a transfer begins to arrive (default: 0.01)"),
        options.BATCH,
        ("--memory SIZE", parse_size, "memory of each device"),
        ("--plot FILE", outputs.PLOT.parse, "draw it into a .svg or .png"),
        options.JSON,
    )
    options.add_arguments(
        parser.add_argument_group("advanced"),
        ("--exact", None, "let operations without a branch between them run on different devices; slow"),
    )


@dataclass(frozen=True)
class Placed(Answer):
    """The placement of a network on `devices` devices, which a link joins."""

    network: str
    devices: int
    device: str
    link: dict[str, Any]
    is_exact: bool
    result: PlacedNetwork

    def content(self) -> dict[str, Any]:
        """Return the form that docs/reference/json.md describes."""
        result, placement = self.result, self.result.placement
        columns = zip(result.steps, result.operations, placement.devices, placement.starts_ms, strict=True)
        return {
            "network": self.network, "devices": self.devices, "device": self.device, "link": self.link,
            "one_device_ms": result.one_device_ms, "time_ms": placement.time_ms,
            "bound_ms": placement.bound_ms, "is_proven": placement.is_proven,
            "merges_chains": not self.is_exact, "speedup": result.speedup,
            "operations": [
                {
                    "name": name, "device": on, "start_ms": start, "time_ms": step.time_ms,
                    "memory": step.memory,
                }
                for name, step, on, start in columns
            ],
        }  # fmt: skip

    def lines(self) -> Lines:
        """Yield a table of the devices, and what they gain."""
        result, placement = self.result, self.result.placement
        yield (
            f"{self.network}: {len(result.steps)} operations with their backward passes on "
            f"{self.devices} devices"
        )
        yield (
            f"on {self.device}, modelled ({find_device(self.device).source}); link "
            f"{format_size(self.link['bandwidth'])}/s and {self.link['latency_ms']} ms, given"
        )
        yield ""
        rows = []
        for number in range(self.devices):
            own = [o for o, d in zip(result.operations, placement.devices, strict=True) if d == number]
            busy_ms = sum(operation.time_ms for operation in own)
            share = busy_ms / placement.time_ms if placement.time_ms else 0.0
            memory = sum(operation.memory for operation in own)
            rows.append((number, len(own), busy_ms, f"{share:.0%}", memory))
        yield table(">device", ">operations", "ms>busy ms", ">share", "B>memory", rows=rows)
        yield ""
        best = (
            "optimal"
            if placement.is_proven
            else f"no placement takes less than {milliseconds(placement.bound_ms)} ms"
        )
        merged = "" if self.is_exact else " if operations without a branch between them stay together"
        yield (
            f"One device: {milliseconds(result.one_device_ms)} ms. {self.devices} devices: "
            f"{milliseconds(placement.time_ms)} ms, {ratio(result.speedup)}; {best}{merged}."
        )


def run(arguments: argparse.Namespace) -> Answer:
    """Place the network, and draw the placement."""
    device, devices = find_device(arguments.device), arguments.devices
    network = read_network(arguments.network, batch=arguments.batch)
    link = {"bandwidth": arguments.bandwidth, "latency_ms": arguments.latency}
    peer = PeerLink(arguments.latency, arguments.bandwidth)
    costs = model_costs(network, device, divide=False)
    result = place_network(
        network, costs, devices, peer, memory=arguments.memory, exact=bool(arguments.exact)
    )
    if arguments.plot:
        from mucudnn.report.command_plots import write_placement

        title = f"{arguments.network} on {devices} devices, {device.name}, modelled"
        write_placement(result, devices, title, arguments.plot)
    return Placed(arguments.network, devices, device.name, link, bool(arguments.exact), result)


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
