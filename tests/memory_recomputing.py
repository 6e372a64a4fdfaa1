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
    saved = trace_model(model, x).saved
    chosen, needed = set(wanted), set[str]()
    for tensor in () if wanted else saved if is_early else reversed(saved):
        if tensor.replayed and tensor.name not in needed and chosen.isdisjoint(tensor.sources):
            chosen.add(tensor.name)
            needed.update(tensor.sources)
    tensors = [
        replace(tensor, choice="recompute" if tensor.name in chosen else "keep", sources=how.sources)
        for tensor, how in zip(plan.tensors, saved, strict=True)
    ]
    return replace(plan, tensors=tuple(tensors), lower=None)
