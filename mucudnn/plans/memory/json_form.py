"""The object that `mucudnn memory --json` prints."""

from typing import Any

from mucudnn.plans.json_forms import configuration_json
from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.plans.plan import PROMISE
from mucudnn.promises import promise_named

_FIELDS = (
    "network", "batch", "device", "costs", "policy", "memory", "floor", "peak", "average", "time_ms",
    "unlimited_ms", "exposed_ms", "bound_ms",
)  # fmt: skip


def memory_json(plan: MemoryPlan) -> dict[str, Any]:
    """Return a memory plan as an object."""
    return {
        **{name: getattr(plan, name) for name in _FIELDS},
        "promise": promise_named(plan.header.get(PROMISE, ""))._asdict(),
        "tensors": [
            {"name": tensor.name, "bytes": tensor.bytes, "choice": tensor.choice} for tensor in plan.tensors
        ],
        "kernels": [
            {
                "step": planned.step,
                "problem": str(planned.kernel.problem),
                "pass": planned.pass_,
                "chosen": configuration_json(planned.chosen),
            }
            for planned in plan.kernels
        ],
    }
