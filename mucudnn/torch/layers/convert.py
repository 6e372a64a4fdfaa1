"""`convert` and `restore`: make the convolutions of a model run divided, in place, and undo it."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeVar, cast

from torch import nn

from mucudnn._native import Problem
from mucudnn.arrays.call import PlanOrPath, known_plan
from mucudnn.costs.remeasuring import remeasure_from_now_on
from mucudnn.errors import ArgumentTypeError, MucudnnWarning, UsageError, shown
from mucudnn.forks import no_fork
from mucudnn.measuring.budget import parse_budget
from mucudnn.plans.plan import Plan, PlanKernel
from mucudnn.promises import promise_of
from mucudnn.torch.layers.converted import CONVERTED, RESTORED, Converted
from mucudnn.torch.layers.settings import ConversionSettings
from mucudnn.torch.layers.transposed import PLANNED, Transposed
from mucudnn.torch.operators import kept_filters
from mucudnn.torch.operators.operands import spelled

Model = TypeVar("Model")
TUNE = ("eager", "never")
_CLASSES = CONVERTED | PLANNED
_RESTORED = RESTORED | {planned: stock for stock, planned in PLANNED.items()}
# The `__module__` of a converted module itself; pickles need that of its class. `torch.fx` treats modules of
# torch.nn as leaves, so a traced model still runs the module, under its usual name.
_MODULE_OF_LEAVES = "torch.nn"


def convert(
    model: Model,
    *,
    workspace: int | str | None = None,
    plan: PlanOrPath | None = None,
    tune: str = "eager",
    numerics: str | None = None,
    batch_invariant: bool | None = None,
    choice: str | None = None,
    budget: str | None = None,
    remeasure: bool = False,
) -> Model:
    """Divide the convolutions of a model, in place, and return the model.

    Every nn.Conv1d, 2d and 3d, at any depth, runs divided from then on; `restore` undoes it. [Some calls run
    as before](torch.md#what-stays-as-it-was).

    Args:
        model: a module that has convolutions. Subclasses of the three modules are left alone, so convert a
            model before you parametrize it, and lazy modules after a run.
        workspace: the scratch memory that a pass of a convolution may use: bytes, "16MiB", or "none" for no
            limit. By default MUCUDNN_WORKSPACE_LIMIT.
        plan: a Plan of `mucudnn.torch.plan`, or its path. A kernel that the plan lacks, as of a
            smaller last batch, runs within `workspace`.
        tune: "eager" [to measure](torch.md#when-it-measures) a shape when it comes again, or "never" to leave
            to PyTorch what neither a plan nor the cache decides.
        numerics: "strict" to exclude FFT, Winograd and TF32, which [spread a NaN](../numerics.md) or a large
            value. The default is the plan's, MUCUDNN_NUMERICS or "fast".
        batch_invariant: True to make a sample's bits depend neither on other samples nor on their number.
        choice: "fixed" to choose by a model of the costs, equally on equal machines, and measure nothing.
        budget: the time that measurements may take, such as "30s"; "none" to make a step's decisions at once.
            The default is MUCUDNN_BUDGET, else the decisions take at most 1.5 times the program's own work.
        remeasure: True to use no measurement from before this call.

    Raises:
        UsageError: the model has no convolutions, or an argument is unknown.
        MucudnnError: the plan cannot be read.
    """
    # Raise errors about the limit or the plan here instead of in the model's first call.
    limit, known = spelled(workspace), None if plan is None else known_plan(plan)
    promise = None
    if (numerics, batch_invariant, choice) != (None, None, None):
        promise = promise_of(numerics, batch_invariant, choice)
    if tune not in TUNE:
        raise UsageError(f"tune is {shown(tune)}: there are {', '.join(TUNE)}")
    budget_s = None if budget is None else parse_budget(str(budget))
    if remeasure:
        remeasure_from_now_on()
    layers = convolutions(model)
    plans: list[str | None] = [None] * len(layers) if known is None else [*plans_of_layers(known, layers)]
    settings = {own: ConversionSettings(limit, own, tune, promise, budget_s) for own in set(plans)}
    for module, own in zip(layers, plans, strict=True):
        divide(module, settings[own])
    kept = next(iter(settings.values()))
    if kept.promise_text:
        for module in set(cast(nn.Module, model).modules()) - set(layers):
            divide(module, kept)
    text, share = describe_subclasses(model)
    if share > 0.5:
        warnings.warn(f"mucudnn: {text}", MucudnnWarning, stacklevel=2)
    return model


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
            chosen = planned.share_of_layer(place, len(able)) if planned.shares else planned.chosen
            own.append(replace(planned, chosen=chosen, shares=()))
    return [str(replace(plan, kernels=tuple(own))) for own in kernels]


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


def divide(module: Any, settings: ConversionSettings) -> None:
    """Make a convolution, possibly transposed, follow settings; leave other modules alone."""
    own = _RESTORED.get(type(module), type(module))
    if own not in _CLASSES and not isinstance(module, Converted | Transposed):
        return
    with no_fork:
        module.__class__ = _CLASSES.get(own, own)  # a parametrized module keeps its class
        module.__module__ = _MODULE_OF_LEAVES
        module._mucudnn = settings
        settings.add(module)


def restore(model: Model) -> Model:
    """Undo `convert`, in place, and return the model."""
    modules: Any = model
    for module in modules.modules():
        if isinstance(module, Converted | Transposed):
            kept_filters.forget(module.weight)
            with no_fork:
                module.__class__ = _RESTORED.get(type(module), type(module))
                for name in ("_mucudnn", "__module__"):
                    module.__dict__.pop(name, None)
    return model


def convolutions(model: Any) -> list[Any]:
    """Return the modules that can be or are converted. Raises UsageError without any, ArgumentTypeError."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"the model is {shown(model)}: give a torch.nn.Module")
    layers = [layer for layer in model.modules() if type(layer) in CONVERTED or isinstance(layer, Converted)]
    if not layers:
        text, _ = describe_subclasses(model)
        raise UsageError(
            "the model has no nn.Conv1d, nn.Conv2d or nn.Conv3d: there is nothing to divide"
            + (f" ({text})" if text else "")
        )
    return layers


def describe_subclasses(model: Any) -> tuple[str, float]:
    """Return which convolutions of a converted model stay PyTorch's, and their share of the weights.

    The text is empty if all of them are converted.
    """
    layers = [layer for layer in model.modules() if isinstance(layer, tuple(CONVERTED))]
    left = {layer: _weights(layer) for layer in layers if not isinstance(layer, Converted)}
    if not left:
        return "", 0.0
    share = sum(left.values()) / max(sum(map(_weights, layers)), 1)
    classes = ", ".join(sorted({type(layer).__name__ for layer in left}))
    return (
        f"{len(left)} of {len(layers)} convolutions, with {share:.0%} of their weights, stay PyTorch's, "
        f"because their classes are subclasses of PyTorch's: {classes}"
    ), share


def _weights(layer: Any) -> int:
    """Return the size of the weight, which need not exist yet, and may be slow to compute."""
    return math.prod((layer.out_channels, layer.in_channels // layer.groups, *layer.kernel_size))


def converted_layers(model: Any) -> dict[Any, str]:
    """Return the converted modules with their names. Raises UsageError if there are none."""
    layers = {
        module: name or type(module).__name__
        for name, module in model.named_modules()
        if isinstance(module, Converted) and module._mucudnn
    }
    if not layers:
        raise UsageError("the model has no converted convolution: call mucudnn.torch.convert(model) first")
    return layers
