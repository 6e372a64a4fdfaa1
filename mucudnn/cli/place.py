"""`mucudnn parallel place`: place a network's operations on several devices."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mucudnn.cli import networks, options
from mucudnn.measuring.modelled_device import DEVICES, find_device
from mucudnn.output.answers import Answer, Lines, table
from mucudnn.output.text import milliseconds, ratio
from mucudnn.plans.devices.placing import place_network
from mucudnn.plans.memory.costs import model_costs
from mucudnn.problems.sources import Flags
from mucudnn.sizes import format_size, parse_size
from mucudnn.solver.devices.pipelines import PeerLink

_LATENCY_MS = 0.01  # until a transfer begins to arrive

HELP = "place a network's operations on several devices"
DESCRIPTION = (
    "Decides on which of several equal devices each operation of a training step runs, and in which order, "
    "so that the step ends early. Shows what model parallelism gains on this network before anybody builds "
    "it. Costs are modelled by the roofline of a device, calibrated where its times were recorded."
)
EXAMPLES = (
    "mucudnn parallel place googlenet --device titanx --bandwidth 150GiB",
    "mucudnn parallel place net.network --devices 4 --memory 16GiB",
)


def prepare_parser(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.set_defaults(devices=2, device="h200", bandwidth=25 * 2**30)
    options.add_arguments(
        parser,
        *networks.ARGUMENTS,
        ("--devices M", options.whole("number of devices", 64), "devices (default: 2)"),
        ("--device", tuple(DEVICES), "modelled device (default: h200)"),
        (
            "--bandwidth SIZE",
            options.parse_bandwidth,
            "bytes per second from one device to another (default: 25GiB)",
        ),
        ("--memory SIZE", parse_size, "memory of each device"),
        options.JSON,
    )


@dataclass(frozen=True)
class Placed(Answer):
    """The placement of a network on equal devices, which a link joins."""

    network: str
    device: str
    costs: str
    bandwidth: int
    one_device_ms: float
    time_ms: float
    bound_ms: float
    speedup: float
    is_proven: bool
    devices: Sequence[dict[str, Any]]
    operations: Sequence[dict[str, Any]]

    def lines(self) -> Lines:
        """Yield a table of the devices, and what they gain."""
        count = len(self.devices)
        operations = f"{len(self.operations)} operations with their backward passes"
        yield f"{self.network}: {operations} on {count} devices"
        yield (
            f"on {self.device}, {self.costs} ({find_device(self.device).source}); link "
            f"{format_size(self.bandwidth)}/s, given, and {_LATENCY_MS} ms"
        )
        yield ""
        yield table(">device", ">operations", "ms>busy ms", ">share", "B>memory", rows=self.devices)
        yield ""
        best = (
            "optimal" if self.is_proven else f"no placement takes less than {milliseconds(self.bound_ms)} ms"
        )
        yield (
            f"One device: {milliseconds(self.one_device_ms)} ms. {count} devices: "
            f"{milliseconds(self.time_ms)} ms, {ratio(self.speedup)}; {best} if operations without a branch "
            "between them stay together."
        )


def run(arguments: argparse.Namespace) -> Answer:
    """Place the network."""
    device, devices = find_device(arguments.device), arguments.devices
    network = networks.read_step(arguments, Flags(arguments.batch, layout=arguments.layout))
    peer = PeerLink(_LATENCY_MS, arguments.bandwidth)
    costs = model_costs(network, device, divide=False)
    result = place_network(network, costs, devices, peer, arguments.memory)
    placement = result.placement
    columns = zip(result.steps, result.operations, placement.devices, placement.starts_ms, strict=True)
    operations = [
        {"name": name, "device": on, "start_ms": start, "time_ms": step.time_ms, "memory": step.memory}
        for name, step, on, start in columns
    ]
    return Placed(
        arguments.network, device.name, costs.summary, arguments.bandwidth, result.one_device_ms,
        placement.time_ms, placement.bound_ms, result.speedup, placement.is_proven,
        [_summarize(number, operations, placement.time_ms) for number in range(devices)], operations,
    )  # fmt: skip


def _summarize(number: int, operations: list[dict[str, Any]], time_ms: float) -> dict[str, Any]:
    own = [operation for operation in operations if operation["device"] == number]
    busy_ms = sum(operation["time_ms"] for operation in own)
    return {
        "device": number, "operations": len(own), "busy_ms": busy_ms,
        "share": f"{busy_ms / time_ms if time_ms else 0.0:.0%}",
        "memory": sum(operation["memory"] for operation in own),
    }  # fmt: skip
