"""Memory plans that use as little memory as they can."""

from typing import Any

from needs_torch import mt

from mucudnn.plans.memory.plan import MemoryPlan


def plan_at_floor(model: Any, example: Any, policy: str) -> MemoryPlan:
    """Return the plan of a model at its floor, without plans of less memory."""
    options: dict[str, Any] = {"device": "h200", "policy": policy, "workspace": 0}
    floor = mt.plan_memory(model, example, memory=2**40, **options).floor
    return mt.plan_memory(model, example, memory=floor, **options)
