"""Groups of channels, for algorithms whose workspace exceeds the limit even for few samples.

The transform of a filter does not shrink with the mini-batch, but with the channels. A group is an ordinary
problem with fewer channels, so it is measured and kept like any other. It divides the mini-batch, too.
"""

from collections.abc import Mapping
from dataclasses import replace

from mucudnn.costs.records import SUCCESS, Measurement
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.candidates import transforms_in_vain
from mucudnn.plans.parts.parts import better, time_of
from mucudnn.plans.parts.recorded_groups import choose_groups, limits_of_groups, list_groups, predict_groups
from mucudnn.plans.result import Result
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import usable_sizes
from mucudnn.solver import ChannelGroups, Configuration

_FEW_SAMPLES = 8  # an algorithm that fits so many samples gains little from fewer channels
_LEAST_GAIN = 0.05  # smaller gains than this are not worth the measurements


def measure_groups(bench: Bench, limits: Mapping[Kernel, int], policy: str) -> int:
    """Make the missing measurements of the groups of kernels, each within its limit in bytes.

    All halves come first, then all quarters, and so on. Fewer channels are measured only as long as an
    algorithm of more channels may be missing. Returns the number of measurements made.
    """
    bench, made = bench.of_engine(), 0
    left = {
        (kernel, of_inputs): [kernel, *list_groups(kernel, of_inputs=of_inputs)]
        for kernel in limits
        for of_inputs in (False, True)
    }
    while left:
        left = {
            (kernel, of_inputs): groups[1:]
            for (kernel, of_inputs), groups in left.items()
            if len(groups) > 1 and lacks_an_algorithm(bench, groups[0], policy, limits[kernel])
        }
        for limit in sorted({limits[kernel] for kernel, _ in left}):
            level = [groups[0] for (kernel, _), groups in left.items() if limits[kernel] == limit]
            made += benchmark(bench, list(dict.fromkeys(level)), policy, comparing=False, limits=(limit,))
    return made


def fastest_groups(bench: Bench, kernel: Kernel, policy: str, limit: int) -> ChannelGroups | None:
    """Return the fastest groups of channels within `limit` bytes of workspace.

    None stands for no groups: nothing fits, or the fastest is the kernel as it is. Missing measurements are
    made.
    """
    measure_groups(bench, {kernel: limit}, policy)
    return choose_groups(bench.cache, bench.machine, kernel, policy, limit)


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


def add_groups(bench: Bench, result: Result, *, run: bool = True) -> Result:
    """Return the result with groups of channels where they beat the choice, both run whole.

    With a total (WD), groups may use the workspace that was granted to the choice. A kernel whose identical
    kernels differ gets none. Missing measurements and comparisons are made. Without `run`, the predictions
    are compared.
    """
    limits, policy = limits_of_groups(result), result.policy
    made = measure_groups(bench, limits, policy)
    if not run:
        return predict_groups(bench.cache, replace(result, new_measurements=result.new_measurements + made))
    decisions = []
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


def lacks_an_algorithm(bench: Bench, kernel: Kernel, policy: str, limit: int) -> bool:
    """Return whether an algorithm that does not fit the limit for a few samples may be the fastest.

    One that was measured must save a twentieth of the time. One that was not measured may save anything.
    """
    sizes = usable_sizes(policy, kernel)
    few = max((size for size in sizes if size <= _FEW_SAMPLES), default=kernel.mini_batch)
    too_large = [
        listed.algorithm
        for listed in bench.candidates(kernel, [few])[few]
        if listed.workspace > limit and (bench.thorough or not transforms_in_vain(kernel, listed.algorithm))
    ]
    if not too_large:
        return False
    rows = [row for row in bench.costs([kernel]).measurements[kernel] if row.status == SUCCESS]
    fastest = min((_sample_ms(row) for row in rows if row.workspace <= limit), default=float("inf"))
    hoped_ms = {
        algorithm: min((_sample_ms(row) for row in rows if row.algorithm == algorithm), default=0.0)
        for algorithm in too_large
    }
    return min(hoped_ms.values()) < fastest * (1 - _LEAST_GAIN)


def _sample_ms(row: Measurement) -> float:
    return float("inf") if row.median_ms is None else row.median_ms / row.micro_batch
