"""The choice of channel groups from recorded measurements. It needs no engine."""

from dataclasses import replace

from mucudnn._native import channel_counts, divided_channels, group_copies, group_kernel
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import Machine
from mucudnn.costs.table import CostTable
from mucudnn.plans.decide import Decision, Limits, desirable_configurations
from mucudnn.plans.result import Result
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import usable_sizes
from mucudnn.solver import ChannelGroups, Configuration, divide_channels

LEAST_SPEEDUP = 1.02  # five rounds do not tell smaller differences from chance


def list_groups(kernel: Kernel, *, of_inputs: bool = False) -> list[Kernel]:
    """Return the kernels of groups, with the most channels first."""
    counts = channel_counts(kernel, of_inputs)
    return [group_kernel(kernel, channels, of_inputs) for channels in counts]


def choose_groups(
    cache: Cache, machine: Machine, kernel: Kernel, policy: str, limit: int
) -> ChannelGroups | None:
    """Return the fastest groups of channels within `limit` bytes, from the measurements of a cache.

    None stands for no groups: nothing fits, or the fastest is the kernel as it is.
    """
    found = []
    for of_inputs in (False, True):
        kernels = [kernel, *list_groups(kernel, of_inputs=of_inputs)]
        if of_inputs and len(kernels) == 1:
            continue
        costs = CostTable.read(cache, machine, kernels)
        sets = {
            divided_channels(one, of_inputs): desirable(costs, one, kernel, policy, of_inputs=of_inputs)
            for one in kernels
        }
        whole = divided_channels(kernel, of_inputs)
        found += divide_channels(sets, whole, limit=limit, of_inputs=of_inputs)[-1:]
    fastest = min(found, key=lambda groups: groups.time_ms, default=None)
    return fastest if fastest is not None and len(fastest.parts) > 1 else None


def predict_groups(cache: Cache, result: Result) -> Result:
    """Return the result with groups of channels where their prediction beats that of the choice.

    The measurements are those of the cache, and nothing is run. A prediction has no time for copies, so a
    comparison that the cache has overrules it.
    """
    limits, machine = limits_of_groups(result), result.machine
    decisions = []
    for decision in result.decisions:
        kernel, chosen = decision.kernel, decision.chosen
        if kernel in limits:
            groups = choose_groups(cache, machine, kernel, result.policy, limits[kernel])
            known = groups and cache.tile_comparison(machine, kernel, chosen, groups)
            if groups and (known.speedup if known else chosen.time_ms / groups.time_ms) > LEAST_SPEEDUP:
                decision = replace(decision, groups=groups)
        decisions.append(decision)
    return replace(result, decisions=tuple(decisions))


def limits_of_groups(result: Result) -> dict[Kernel, int]:
    """Return the bytes of workspace that each kernel's groups may use, of the kernels that may have any."""
    if result.policy == "undivided":
        return {}
    return {
        decision.kernel: limit
        for decision in result.decisions
        if not decision.shares and (limit := limit_of(decision, result.limits)) is not None
    }


def limit_of(decision: Decision, limits: Limits) -> int | None:
    """Return the bytes that a kernel may use; under a total, the workspace of its chosen configuration."""
    return limits.workspace if limits.mode == "wr" else decision.chosen.workspace


def desirable(
    costs: CostTable, group: Kernel, whole: Kernel, policy: str, *, of_inputs: bool = False
) -> list[Configuration]:
    """Return the desirable set of a group's kernel. The workspace of a part includes its slices' copies."""
    channels = divided_channels(group, of_inputs)
    rows = [
        replace(
            row,
            workspace=row.workspace
            + group_copies(whole, channels, row.micro_batch, of_inputs, row.takes_strides),
        )
        for row in costs.measurements[group]
        if row.micro_batch in usable_sizes(policy, whole)
    ]
    return desirable_configurations(rows, group)
