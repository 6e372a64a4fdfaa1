"""Groups of channels, for algorithms whose workspace exceeds the limit even for few samples.

The transform of a filter does not shrink with the mini-batch, but with the channels. A group is an ordinary
problem with fewer channels, so it is measured and kept like any other. It divides the mini-batch, too.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from mucudnn._native import divided_channels, group_copies, group_kernel
from mucudnn.costs.records import SUCCESS, Measurement
from mucudnn.costs.table import CostTable
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.candidates import transforms_in_vain
from mucudnn.plans.decide import Decision, Limits, desirable_configurations
from mucudnn.plans.optimizer import Result, benchmark
from mucudnn.plans.parts import better, time_of
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import usable_sizes
from mucudnn.solver import ChannelGroups, Configuration, divide_channels

_FEWEST = 16  # a group of fewer channels leaves the vector units and the tensor cores idle
_MULTIPLE = 8  # tensor cores take channels in 16-bit types by eight
_MOST_GROUPS = 16
_FEW_SAMPLES = 8  # an algorithm that fits so many samples gains little from fewer channels
_LEAST_GAIN = 0.05  # smaller gains than this are not worth the measurements


def channel_counts(kernel: Kernel) -> Iterator[int]:
    """Yield the numbers of channels that groups may have: a half of all channels, a quarter, and so on."""
    whole = divided_channels(kernel)
    channels = whole
    while channels % (2 * _MULTIPLE) == 0 and channels >= 2 * _FEWEST and channels * _MOST_GROUPS > whole:
        channels //= 2
        yield channels


def _groups_of(kernel: Kernel) -> list[Kernel]:
    """Return the kernels of groups, with the most channels first."""
    return [group_kernel(kernel, channels) for channels in channel_counts(kernel)]


def measure_groups(bench: Bench, limits: Mapping[Kernel, int], policy: str) -> int:
    """Make the missing measurements of the groups of kernels, each within its limit in bytes.

    All halves come first, then all quarters, and so on. Fewer channels are measured only as long as an
    algorithm of more channels may be missing. Returns the number of measurements made.
    """
    bench, made = bench.of_engine(), 0
    left = {kernel: [kernel, *_groups_of(kernel)] for kernel in limits}
    while left:
        left = {
            kernel: groups[1:]
            for kernel, groups in left.items()
            if len(groups) > 1 and lacks_an_algorithm(bench, groups[0], policy, limits[kernel])
        }
        for limit in sorted({limits[kernel] for kernel in left}):
            level = [groups[0] for kernel, groups in left.items() if limits[kernel] == limit]
            made += benchmark(bench, list(dict.fromkeys(level)), policy, comparing=False, limits=(limit,))
    return made


def fastest_groups(bench: Bench, kernel: Kernel, policy: str, limit: int) -> ChannelGroups | None:
    """Return the fastest groups of channels within `limit` bytes of workspace.

    None stands for no groups: nothing fits, or the fastest is the kernel as it is. Missing measurements are
    made.
    """
    measure_groups(bench, {kernel: limit}, policy)
    kernels = [kernel, *_groups_of(kernel)]
    costs = bench.of_engine().costs(kernels)
    sets = {divided_channels(one): desirable(costs, one, kernel, policy) for one in kernels}
    found = divide_channels(sets, divided_channels(kernel), limit=limit)
    return found[-1] if found and len(found[-1].parts) > 1 else None


def better_groups(
    bench: Bench, kernel: Kernel, policy: str, limit: int | None, rival: Configuration | None
) -> ChannelGroups | None:
    """Return the fastest groups of channels within `limit` bytes of workspace, if they beat `rival`.

    `rival` is a division of the mini-batch; None stands for no division that fits.
    """
    if limit is None or policy == "undivided":
        return None
    if not lacks_an_algorithm(bench.of_engine(), kernel, policy, limit):
        return None
    groups = fastest_groups(bench, kernel, policy, limit)
    return groups if better(bench, kernel, policy, limit, rival, groups) else None


def add_groups(bench: Bench, result: Result) -> Result:
    """Return the result with groups of channels where they beat the choice, both run whole.

    With a total (WD), groups may use the workspace that was granted to the choice. A kernel whose identical
    kernels differ gets none. Missing measurements and comparisons are made.
    """
    if result.policy == "undivided":
        return result
    limits = {
        decision.kernel: limit
        for decision in result.decisions
        if not decision.shares and (limit := limit_of(decision, result.limits)) is not None
    }
    made = measure_groups(bench, limits, result.policy)
    decisions, policy = [], result.policy
    for decision in bench.listener.track(result.decisions, "Running groups of channels whole"):
        kernel, chosen = decision.kernel, decision.chosen
        groups = fastest_groups(bench, kernel, policy, limits[kernel]) if kernel in limits else None
        if groups is None:
            decisions.append(decision)
            continue
        before = bench.cache.tile_comparison(bench.machine, kernel, chosen, groups)
        wins = better(bench, kernel, policy, limits[kernel], chosen, groups)
        compared = bench.cache.tile_comparison(bench.machine, kernel, chosen, groups)
        made += before is None and compared is not None
        if wins:
            decision = replace(decision, groups=groups, groups_ms=time_of(bench, kernel, groups, chosen))
        decisions.append(decision)
    return replace(result, decisions=tuple(decisions), new_measurements=result.new_measurements + made)


def limit_of(decision: Decision, limits: Limits) -> int | None:
    """Return the bytes that a kernel may use; under a total, the workspace of its chosen configuration."""
    return limits.workspace if limits.mode == "wr" else decision.chosen.workspace


def desirable(costs: CostTable, group: Kernel, whole: Kernel, policy: str) -> list[Configuration]:
    """Return the desirable set of a group's kernel. The workspace of a part includes its slices' copies."""
    channels = divided_channels(group)
    rows = [
        replace(row, workspace=row.workspace + group_copies(whole, channels, row.micro_batch))
        for row in costs.measurements[group]
        if row.micro_batch in usable_sizes(policy, whole)
    ]
    return desirable_configurations(rows, group)


def lacks_an_algorithm(bench: Bench, kernel: Kernel, policy: str, limit: int) -> bool:
    """Return whether an algorithm that does not fit the limit for a few samples may be the fastest.

    One that was measured must save a twentieth of the time. One that was not measured may save anything.
    """
    rows = [row for row in bench.costs([kernel]).measurements[kernel] if row.status == SUCCESS]
    sizes = usable_sizes(policy, kernel)
    few = max((size for size in sizes if size <= _FEW_SAMPLES), default=kernel.mini_batch)
    fastest = min((_sample_ms(row) for row in rows if row.workspace <= limit), default=float("inf"))
    for listed in bench.candidates(kernel, [few])[few]:
        if not bench.thorough and transforms_in_vain(kernel, listed.algorithm):
            continue
        times = [_sample_ms(row) for row in rows if row.algorithm == listed.algorithm]
        if listed.workspace > limit and min(times, default=0.0) < fastest * (1 - _LEAST_GAIN):
            return True
    return False


def _sample_ms(row: Measurement) -> float:
    return float("inf") if row.median_ms is None else row.median_ms / row.micro_batch
