"""The memory of a training step over time, by kind."""

import bisect
from dataclasses import dataclass

from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.problems.steps import PRESENT
from mucudnn.solver.memory.timeline import Timeline

KINDS = {
    "weights": "weights and input",
    "gradients": "gradients of weights",
    "saved": "saved activations",
    "others": "other activations and their gradients",
    "workspace": "workspace",
}


@dataclass(frozen=True)
class MemoryCurve:
    """The bytes of each kind from each moment to the next, the last of which is the end of the step.

    `peak` is the index of the moment with the most bytes.
    """

    moments: tuple[float, ...]
    layers: dict[str, tuple[int, ...]]
    peak: int

    def total(self, index: int) -> int:
        """Return the bytes of all kinds from a moment to the next."""
        return sum(layer[index] for layer in self.layers.values())


def stack_memory(plan: MemoryPlan, timeline: Timeline) -> MemoryCurve:
    """Return the bytes in memory by kind.

    A plan that was read from a file has no network, so weights and their gradients count as others.
    """
    always, gradients = _count_fixed(plan)
    workspace = [step.workspace for step in plan.steps]
    for tensor in plan.tensors:
        if tensor.choice == "recompute" and tensor.saved.replay:
            at = tensor.saved.first_backward_use
            workspace[at] = max(workspace[at], tensor.saved.replay.workspace)
    changes = dict(timeline.memory)
    moments = sorted({*changes, *timeline.starts_ms, *timeline.ends_ms})
    layers: dict[str, list[int]] = {kind: [] for kind in KINDS}
    totals = [0]
    for moment in moments:
        total = changes.get(moment, totals[-1])
        totals.append(total)
        step = max(bisect.bisect_right(timeline.starts_ms, moment) - 1, 0)
        is_running = moment < timeline.ends_ms[step]
        scratch = workspace[step] if is_running else 0
        others = max(plan.steps[step].fixed - always - gradients[step], 0)
        rest = max(total - scratch - always - gradients[step], 0)
        layers["weights"].append(always)
        layers["gradients"].append(gradients[step])
        layers["others"].append(min(others, rest))
        layers["saved"].append(rest - min(others, rest))
        layers["workspace"].append(scratch)
    peak = next((number for number, total in enumerate(totals[1:]) if total == timeline.peak), 0)
    return MemoryCurve(tuple(moments), {kind: tuple(layer) for kind, layer in layers.items()}, peak)


def _count_fixed(plan: MemoryPlan) -> tuple[int, list[int]]:
    """Return the bytes that are always in memory, and those of the gradients of weights in each step."""
    network, count = plan.traced, len(plan.steps)
    if network is None:
        return 0, [0] * count
    always = sum(tensor.bytes for tensor in network.tensors if tensor.kind in PRESENT)
    gradients = [0] * count
    for tensor in network.tensors:
        if tensor.kind == "gradient":
            for step in network.lifetimes[tensor.name].alive:
                gradients[step] += tensor.bytes
    return always, gradients
