"""The object that `mucudnn memory --json` prints."""

from collections import Counter
from typing import Any

from mucudnn.plans.memory.parts import PlannedKernel
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.plans.plan import PROMISE
from mucudnn.plans.result import kernel_json
from mucudnn.problems.kernels import Kernel
from mucudnn.promises import promise_named
from mucudnn.solver import Configuration

_FIELDS = (
    "network", "batch", "device", "costs", "policy", "memory", "floor", "peak", "average", "time_ms",
    "unlimited_ms", "exposed_ms", "bound_ms",
)  # fmt: skip


def memory_json(plan: MemoryPlan) -> dict[str, Any]:
    """Return a memory plan as an object, whose kernels have the form of `optimize --json`.

    Kernels with equal problems, passes and choices become one entry with their count. `undivided` is the
    fastest undivided configuration within the workspace of the choice, or None if none fits.
    """
    first: dict[tuple[Kernel, Configuration], PlannedKernel] = {}
    counts: Counter[tuple[Kernel, Configuration]] = Counter()
    for planned in plan.kernels:
        first.setdefault((planned.kernel, planned.chosen), planned)
        counts[planned.kernel, planned.chosen] += 1
    return {
        **{name: getattr(plan, name) for name in _FIELDS},
        "promise": promise_named(plan.header.get(PROMISE, ""))._asdict(),
        "tensors": [
            {"name": tensor.name, "bytes": tensor.bytes, "choice": tensor.choice} for tensor in plan.tensors
        ],
        "kernels": [_make_kernel(planned, counts[key]) for key, planned in first.items()],
    }


def _make_kernel(planned: PlannedKernel, count: int) -> dict[str, Any]:
    kernel, chosen = planned.kernel, planned.chosen
    whole = [
        option
        for option in planned.desirable
        if not option.is_divided and option.workspace <= chosen.workspace
    ]
    best = whole[-1].parts[0] if whole else None
    return kernel_json(kernel, count, best, chosen, None)
