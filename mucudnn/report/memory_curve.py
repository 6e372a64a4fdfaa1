"""The memory of a training step over time, by kind."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.problems.steps import PRESENT
from mucudnn.solver.memory.timeline import Timeline

KINDS = {
    "weights": ("weights and input", "undivided"),
    "gradients": ("gradients of weights", "gradient"),
    "saved": ("saved activations", "divided"),
    "others": ("other activations and their gradients", "even"),
    "workspace": ("workspace", "workspace"),
}
"""The name of each kind for people, and the role of its colour."""


@dataclass(frozen=True)
class MemoryCurve:
    """The bytes of each kind from each moment to the next, the last of which is the end of the step.

    `peak` is the index of the moment with the most bytes.
    """

    moments: tuple[float, ...]
    layers: dict[str, NDArray[np.int64]]
    peak: int

    def total(self, index: int) -> int:
        """Return the bytes of all kinds from a moment to the next."""
        return int(sum(layer[index] for layer in self.layers.values()))


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
    moments = np.array(sorted({*dict(timeline.memory), *timeline.starts_ms, *timeline.ends_ms}))
    changes = np.searchsorted([moment for moment, _ in timeline.memory], moments, "right")
    totals = np.array([0, *(total for _, total in timeline.memory)])[changes]
    step = np.maximum(np.searchsorted(timeline.starts_ms, moments, "right") - 1, 0)
    scratch = np.where(moments < np.array(timeline.ends_ms)[step], np.array(workspace)[step], 0)
    fixed, of_weights = np.array([each.fixed for each in plan.steps])[step], np.array(gradients)[step]
    rest = np.maximum(totals - scratch - always - of_weights, 0)
    others = np.clip(fixed - always - of_weights, 0, rest)
    layers = {
        "weights": np.full_like(rest, always),
        "gradients": of_weights,
        "saved": rest - others,
        "others": others,
        "workspace": scratch,
    }
    return MemoryCurve(tuple(moments.tolist()), layers, int(np.argmax(totals == timeline.peak)))


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
