"""The result of `optimize`, and its forms: numbers, JSON and a plan."""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from mucudnn.costs.records import Machine
from mucudnn.plans.decide import Decision, Limits
from mucudnn.plans.json_forms import configuration_json, groups_json, kernel_fields
from mucudnn.plans.plan import LIMIT, Plan, PlanKernel, promise_fields
from mucudnn.promises import USUAL, Promise
from mucudnn.sizes import spell_limit
from mucudnn.solver import Configuration


@dataclass(frozen=True)
class Result:
    """The decisions for a network, with the machine, policy, limits and promise that they were made for."""

    machine: Machine
    policy: str
    limits: Limits
    new_measurements: int
    decisions: tuple[Decision, ...]
    promise: Promise = USUAL


@dataclass(frozen=True)
class Times:
    """Milliseconds of one kernel or of all kernels, by the best undivided algorithms and as chosen."""

    undivided_ms: float | None
    divided_ms: float

    @property
    def speedup(self) -> float | None:
        """The undivided time over the divided time; None if either is missing or 0."""
        if self.undivided_ms is None or self.divided_ms == 0:
            return None
        return self.undivided_ms / self.divided_ms


def predicted(decision: Decision) -> Times:
    """Return the predicted times of a decision: sums of the times of its micro-configurations."""
    return Times(decision.undivided.time_ms if decision.undivided else None, decision.best.time_ms)


def measured(decision: Decision) -> Times | None:
    """Return the times of the comparison's whole runs; None if there was no comparison."""
    comparison = decision.comparison
    if comparison is None:
        return None
    return Times(comparison.undivided_ms, decision.time_ms)


def final(decision: Decision) -> Times:
    """Return the measured times; without a comparison, the predicted times."""
    return measured(decision) or predicted(decision)


def total(decisions: Iterable[Decision], times_of: Callable[[Decision], Times] = final) -> Times:
    """Return the sum of the kernels' times, weighted by count.

    The undivided time is None if any kernel has no undivided time.
    """
    divided, undivided = [], []
    for decision in decisions:
        times, count = times_of(decision), decision.kernel.count
        divided.append(count * times.divided_ms)
        undivided.append(math.nan if times.undivided_ms is None else count * times.undivided_ms)
    whole = math.fsum(undivided)
    return Times(None if math.isnan(whole) else whole, math.fsum(divided))


def total_workspace(result: Result) -> int:
    """Return the bytes of workspace that the choices use together.

    With workspace reuse, this is the maximum over all kernels; with workspace division, their sum.
    """
    if result.limits.mode == "wr":
        return max(decision.best.workspace for decision in result.decisions)
    return sum(decision.kernel.count * decision.best.workspace for decision in result.decisions)


def split_shares(result: Result) -> Result:
    """Return the result with each kernel that has shares replaced by a decision for each share."""
    return replace(
        result, decisions=tuple(share for decision in result.decisions for share in decision.apart)
    )


def has_shares(result: Result) -> bool:
    """Return whether identical kernels differ in the faster division of the total."""
    return any(decision.shares for decision in result.decisions)


def to_json(result: Result) -> dict[str, Any]:
    """Return the object that `optimize --json` prints."""
    limits = result.limits
    return {
        "mode": limits.mode,
        **asdict(result.machine),
        "policy": result.policy,
        "promise": result.promise._asdict(),
        "workspace_limit": limits.workspace,
        "total_workspace": limits.total,
        "new_measurements": result.new_measurements,
        "kernels": [
            {
                **_make_kernel_json(decision),
                "shares": [_make_kernel_json(share) for share in decision.shares],
                "groups": decision.groups
                and {**groups_json(decision.groups), "measured_ms": decision.groups_ms},
            }
            for decision in result.decisions
        ],
        "total": {
            **_make_total_json(result),
            "apart": _make_total_json(split_shares(result)) if has_shares(result) else None,
        },
    }


def _make_total_json(result: Result) -> dict[str, Any]:
    times = total(result.decisions)
    return {**asdict(times), "speedup": times.speedup, "workspace": total_workspace(result)}


def to_plan(result: Result) -> Plan:
    """Return the plan with the result's choices and their desirable sets."""
    limits = result.limits
    header = {
        **{name: str(value) for name, value in asdict(result.machine).items()},
        "policy": result.policy,
        "mode": limits.mode,
        LIMIT: spell_limit(limits.workspace),
        "total_workspace": spell_limit(limits.total),
        **promise_fields(result.promise),
    }
    kernels = []
    for d in result.decisions:
        counts: Counter[Configuration] = Counter()
        for share in d.shares:
            counts[share.divided] += share.kernel.count
        shares = tuple((count, configuration) for configuration, count in counts.items())
        kernels.append(PlanKernel(d.kernel, d.kernel.count, d.divided, d.desirable, shares, d.groups))
    return Plan(header, tuple(kernels))


def _make_kernel_json(decision: Decision) -> dict[str, Any]:
    undivided, comparison = decision.undivided, decision.comparison
    return {
        **kernel_fields(decision.kernel, decision.kernel.count),
        "undivided": undivided and asdict(undivided.parts[0]),
        "divided": configuration_json(decision.divided),
        # The comparison is of the micro-batches alone, even if groups of channels replace them.
        "measured": comparison
        and {
            **asdict(comparison),
            "speedup": Times(comparison.undivided_ms, comparison.divided_ms).speedup,
            "is_busy": decision.is_busy,
        },
    }
