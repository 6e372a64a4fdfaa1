"""The JSON objects of kernels, configurations and groups of channels, as docs/reference/json.md has them."""

from dataclasses import asdict
from typing import Any

from mucudnn.problems.kernels import Kernel
from mucudnn.solver import ChannelGroups, Configuration


def kernel_fields(kernel: Kernel, count: int) -> dict[str, Any]:
    """Return the fields that name a kernel."""
    return {"problem": str(kernel.problem), "pass": kernel.pass_, "count": count}


def configuration_json(configuration: Configuration) -> dict[str, Any]:
    """Return the object of a configuration.

    Equal parts are one object with their number, because a plan of a few bytes can have a million parts.
    """
    return {
        "parts": [{"times": times, **asdict(part)} for times, part in configuration.grouped()],
        "time_ms": configuration.time_ms,
        "workspace": configuration.workspace,
    }


def groups_json(groups: ChannelGroups) -> dict[str, Any]:
    """Return the object of groups of channels. Equal groups are one object with their number."""
    return {
        "parts": [
            {"times": times, "channels": group.channels, **configuration_json(group.configuration)}
            for times, group in groups.grouped()
        ],
        "of_inputs": groups.of_inputs,
        "time_ms": groups.time_ms,
        "workspace": groups.workspace,
    }
