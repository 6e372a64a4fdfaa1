"""The JSON objects of configurations, plans, checks and differences, as docs/reference/json.md has them."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from mucudnn.costs.records import Machine
from mucudnn.plans.plan import Plan, PlanKernel
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import ChannelGroups, Configuration

if TYPE_CHECKING:
    from mucudnn.plans.verify import KernelCheck  # it imports numpy


def machine_json(machine: Machine) -> dict[str, Any]:
    """Return the fields of a machine."""
    return asdict(machine)


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


def plan_json(plan: Plan) -> dict[str, Any]:
    """Return the object that `plan show --json` prints."""
    return {
        "header": plan.header,
        "kernels": [
            {
                **kernel_fields(planned.kernel, planned.count),
                **_choice_json(planned),
                "desirable": [configuration_json(option) for option in planned.desirable],
            }
            for planned in plan.kernels
        ],
    }


def checks_json(checks: Sequence["KernelCheck"], elsewhere: Sequence[str]) -> dict[str, Any]:
    """Return the object that `plan verify --json` prints.

    `elsewhere` lists the differences between the plan's machine and this one; with any, no kernel is checked.
    """
    return {
        "holds": not elsewhere and not any(check.complaints or check.slower for check in checks),
        "machine": list(elsewhere),
        "kernels": [
            {
                **kernel_fields(check.kernel.kernel, check.kernel.count),
                "predicted_ms": check.kernel.chosen.time_ms,
                "now_ms": check.time_ms,
                "is_busy": check.is_busy,
                "slower": check.slower,
                "complaints": list(check.complaints),
            }
            for check in checks
        ],
    }


def _choice_json(planned: PlanKernel) -> dict[str, Any]:
    groups = planned.groups
    return {
        "chosen": configuration_json(planned.chosen),
        "groups": groups and groups_json(groups),
        "shares": [{"count": count, **configuration_json(share)} for count, share in planned.shares],
    }
