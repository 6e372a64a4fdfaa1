"""The shares of a plan, with which identical layers of a model run different configurations."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from mucudnn._native import Problem
from mucudnn.plans.plan import Plan, PlanKernel
from mucudnn.plans.shares import share_of_layer


def plans_of_layers(plan: Plan, layers: Sequence[Any]) -> list[str]:
    """Return the text of the plan that each convolution of a model follows.

    If any kernel has shares, the plan of a layer has only the kernels that the layer may run, with its own
    shares as their choices. `layers` are modules in the order of the model.
    """
    if not any(planned.shares for planned in plan.kernels):
        return [str(plan)] * len(layers)
    kernels: list[list[PlanKernel]] = [[] for _ in layers]
    for planned in plan.kernels:
        able = [own for own, layer in zip(kernels, layers, strict=True) if _may_run(planned.problem, layer)]
        for place, own in enumerate(able):
            own.append(_choose_share(planned, place, len(able)))
    return [str(replace(plan, kernels=tuple(own))) for own in kernels]


def _choose_share(planned: PlanKernel, layer: int, layers: int) -> PlanKernel:
    """Return a kernel with the choice for one layer."""
    if not planned.shares:
        return planned
    return replace(planned, chosen=share_of_layer(planned, layer, layers), shares=())


def _may_run(problem: Problem, layer: Any) -> bool:
    """Return whether a layer can run a problem. The padding may differ, because layers also pad inputs."""
    dims = len(layer.kernel_size)
    flat = problem.kernel[: problem.dims - dims]  # a problem of one dimension has a height of 1
    return (
        problem.dims == max(dims, 2)
        and all(size == 1 for size in flat)
        and (problem.in_channels, problem.out_channels, problem.groups)
        == (layer.in_channels, layer.out_channels, layer.groups)
        and problem.kernel[-dims:] == tuple(layer.kernel_size)
        and problem.stride[-dims:] == tuple(layer.stride)
        and problem.dilation[-dims:] == tuple(layer.dilation)
    )
