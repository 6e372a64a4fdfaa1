"""Groups of channels, for algorithms whose workspace exceeds the limit even for few samples.

The transform of a filter does not shrink with the mini-batch, but with the channels. A group is an ordinary
problem with fewer channels, so it is measured and kept like any other. It divides the mini-batch, too.
"""

from collections.abc import Mapping
from dataclasses import replace

from mucudnn._native import channel_counts, divided_channels, group_copies, group_kernel
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import SUCCESS, Machine, Measurement
from mucudnn.costs.table import CostTable
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.plans.decide import desirable_configurations
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import usable_sizes
from mucudnn.solver import ChannelGroups, Configuration, divide_channels

_FEW_SAMPLES = 8  # an algorithm that fits that many samples gains little from fewer channels
_LEAST_GAIN = 0.05  # smaller gains than this are not worth the measurements


def propose_groups(bench: Bench, kernel: Kernel, policy: str, limit: int) -> ChannelGroups | None:
    """Return the fastest groups of channels within `limit` bytes, or None if they cannot gain or do not fit.

    Makes the missing measurements; a replay chooses among the groups that were measured.
    """
    if bench.runner.measures:
        if not limit_may_exclude_fastest(bench.without_source(), kernel, policy, limit):
            return None
        measure_groups(bench, {kernel: limit}, policy)
    return choose_groups(bench.cache, bench.machine, kernel, policy, limit)


def measure_groups(bench: Bench, limits: Mapping[Kernel, int], policy: str) -> None:
    """Make the missing measurements of the groups of kernels, each within its limit in bytes.

    All halves come first, then all quarters, and so on. Fewer channels are measured only while more channels
    lack an algorithm.
    """
    bench = bench.without_source()
    left = {
        (kernel, of_inputs): [kernel, *group_kernels(kernel, of_inputs=of_inputs)]
        for kernel in limits
        for of_inputs in (False, True)
    }
    while left:
        left = {
            (kernel, of_inputs): groups[1:]
            for (kernel, of_inputs), groups in left.items()
            if len(groups) > 1 and limit_may_exclude_fastest(bench, groups[0], policy, limits[kernel])
        }
        for limit in sorted({limits[kernel] for kernel, _ in left}):
            level = [groups[0] for (kernel, _), groups in left.items() if limits[kernel] == limit]
            benchmark(bench, list(dict.fromkeys(level)), policy, limits=(limit,))


def limit_may_exclude_fastest(bench: Bench, kernel: Kernel, policy: str, limit: int) -> bool:
    """Return whether an algorithm that does not fit the limit for a few samples may be the fastest.

    A measured algorithm must save a twentieth of the time, while an unmeasured one may save any amount.
    """
    sizes = usable_sizes(policy, kernel)
    few = max((size for size in sizes if size <= _FEW_SAMPLES), default=kernel.mini_batch)
    exceeding = bench.exceeding(kernel, few, limit)
    if not exceeding:
        return False
    rows = [row for row in bench.costs([kernel]).measurements[kernel] if row.status == SUCCESS]
    fastest = min((_sample_ms(row) for row in rows if row.workspace <= limit), default=float("inf"))
    hoped_ms = {
        algorithm: min((_sample_ms(row) for row in rows if row.algorithm == algorithm), default=0.0)
        for algorithm in exceeding
    }
    return min(hoped_ms.values()) < fastest * (1 - _LEAST_GAIN)


def _sample_ms(row: Measurement) -> float:
    return float("inf") if row.time_ms is None else row.time_ms / row.micro_batch


def choose_groups(
    cache: Cache, machine: Machine, kernel: Kernel, policy: str, limit: int
) -> ChannelGroups | None:
    """Return the fastest groups of channels within `limit` bytes, from the measurements of a cache.

    Return None if nothing fits, or if the kernel as it is would be fastest.
    """
    choices: list[ChannelGroups] = []
    for of_inputs in (False, True):
        kernels = [kernel, *group_kernels(kernel, of_inputs=of_inputs)]
        if of_inputs and len(kernels) == 1:
            continue
        costs = CostTable.read(cache, machine, kernels)
        sets = {
            divided_channels(group, of_inputs): _desirable(costs, group, kernel, policy, of_inputs)
            for group in kernels
        }
        whole = divided_channels(kernel, of_inputs)
        choices += divide_channels(sets, whole, limit=limit, of_inputs=of_inputs)[-1:]
    fastest = min(choices, key=lambda groups: groups.time_ms, default=None)
    return fastest if fastest is not None and len(fastest.parts) > 1 else None


def group_kernels(kernel: Kernel, *, of_inputs: bool = False) -> list[Kernel]:
    """Return the kernels of the groups that a kernel's channels can be divided into, the largest first."""
    return [group_kernel(kernel, channels, of_inputs) for channels in channel_counts(kernel, of_inputs)]


def _desirable(
    costs: CostTable, group: Kernel, whole: Kernel, policy: str, of_inputs: bool
) -> list[Configuration]:
    """Return the desirable set of a group's kernel. The workspace of a part includes its slices' copies."""
    channels, sizes = divided_channels(group, of_inputs), usable_sizes(policy, whole)
    rows = [
        replace(
            row,
            workspace=row.workspace
            + group_copies(whole, channels, row.micro_batch, of_inputs, row.takes_strides),
        )
        for row in costs.measurements[group]
        if row.micro_batch in sizes
    ]
    return desirable_configurations(rows, group)
