"""Plans that compute saved tensors again, whatever that costs."""

from dataclasses import replace

from needs_torch import torch

from mucudnn.plans.memory.plan import MemoryPlan
from mucudnn.torch.tracing.trace import trace_model


def recompute(
    plan: MemoryPlan, model: torch.nn.Module, x: torch.Tensor, *wanted: str, is_early: bool = False
) -> MemoryPlan:
    """Return the plan of a model with the wanted tensors recomputed, by default most, and the others kept.

    Most are those whose sources are not recomputed, the last ones first, or with `is_early` the first ones.
    """
    sources = {name: read for name, (_, read) in trace_model(model, x).replays.items()}
    chosen, needed = set(wanted), set[str]()
    for name in () if wanted else sources if is_early else reversed(sources):
        if name not in needed and chosen.isdisjoint(sources[name]):
            chosen.add(name)
            needed.update(sources[name])
    tensors = [
        replace(
            tensor,
            choice="recompute" if tensor.name in chosen else "keep",
            sources=sources.get(tensor.name, ()),
        )
        for tensor in plan.tensors
    ]
    return replace(plan, tensors=tuple(tensors))
