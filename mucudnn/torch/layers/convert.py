"""`convert` and `restore`: make the convolutions of a model run divided, in place, and undo it."""

import math
import warnings
from collections import Counter
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
from mucudnn.torch.layers.converted import ConvForward, Method, SubclassForward
from mucudnn.torch.layers.settings import UNREACHED, ConversionSettings
from mucudnn.torch.layers.transposed import TRANSPOSED, TransposedForward
from mucudnn.torch.operators import kept_filters
from mucudnn.torch.operators.operands import spelled

Model = TypeVar("Model")
TUNE = ("eager", "never")
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


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
        model: a module that has convolutions. In a subclass of the three modules every convolution that its
            `forward` runs is divided, whether by `super().forward` or by a function such as `F.conv2d`.
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
    text, are_all_reached = describe_reach(model, Counter())
    if not are_all_reached:
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
    name, kind = method_for(module)
    if kind is None:
        return
    method = kind(module, settings)
    own = {name: method, "extra_repr": method.extra_repr, "__prepare_scriptable__": method.refuse_script}
    with no_fork:
        vars(module).update(own, _mucudnn=settings)


def restore(model: Model) -> Model:
    """Undo `convert`, in place, and return the model."""
    modules: Any = model
    for module in modules.modules():
        if is_converted(module):
            kept_filters.forget(module.weight)
            with no_fork:
                for name, value in [*vars(module).items()]:
                    if isinstance(getattr(value, "__self__", value), Method | ConversionSettings):
                        del vars(module)[name]
    return model


def is_converted(module: Any) -> bool:
    """Return whether a module follows settings."""
    return "_mucudnn" in vars(module)


def method_for(module: Any) -> tuple[str, Any]:
    """Return which method of a module `divide` replaces, and the class of its replacement.

    The class is None for other modules, and if the module itself already has such a method, of another
    library.
    """
    stock = next((stock for stock in (*CONVOLUTIONS, *TRANSPOSED) if isinstance(module, stock)), None)
    if stock is None:
        return "", None
    kind, name = type(module), "forward"
    method: Any = None
    if kind.forward is not stock.forward or kind._conv_forward is not stock._conv_forward:
        method = SubclassForward if stock in CONVOLUTIONS else None
    elif stock in TRANSPOSED:
        method = TransposedForward
    else:
        name, method = "_conv_forward", ConvForward
    return name, method if isinstance(vars(module).get(name), Method | None) else None


def convolutions(model: Any) -> list[Any]:
    """Return the modules that can be or are converted. Raises UsageError without any, ArgumentTypeError."""
    if not isinstance(model, nn.Module):
        raise ArgumentTypeError(f"the model is {shown(model)}: give a torch.nn.Module")
    layers = [layer for layer in list_convolutions(model) if method_for(layer)[1]]
    if not layers:
        raise UsageError("the model has no nn.Conv1d, nn.Conv2d or nn.Conv3d: there is nothing to divide")
    return layers


def describe_reach(model: Any, flops: Counter[Any]) -> tuple[str, bool]:
    """Return which share of the convolutions of a converted model is reached, and whether all of them are.

    `flops` has the floating-point operations of each layer that ran.
    """
    weights = Counter({layer: weight_size(layer) for layer in list_convolutions(model)})
    reached = [
        layer
        for layer in weights
        if is_converted(layer) and type(layer).__name__ not in layer._mucudnn.unreached
    ]
    shares = [
        f"{sum(sizes[layer] for layer in reached) / sizes.total():.0%} of their {name}"
        for name, sizes in (("weights", weights), ("FLOPs", flops))
        if sizes.total()
    ]
    text = f"{len(reached)} of {len(weights)} convolutions are reached, with {' and '.join(shares)}"
    left = sorted({type(layer).__name__ for layer in weights.keys() - reached})
    return f"{text}; {', '.join(left)} {UNREACHED}" if left else text, not left


def list_convolutions(model: Any) -> list[Any]:
    """Return the convolutions of a model, also those that `convert` does not reach."""
    return [layer for layer in model.modules() if isinstance(layer, CONVOLUTIONS)]


def weight_size(layer: Any) -> int:
    """Return the size of the weight, which need not exist yet, and may be slow to compute."""
    return math.prod((layer.out_channels, layer.in_channels // layer.groups, *layer.kernel_size))


def converted_layers(model: Any) -> dict[Any, str]:
    """Return the converted modules with their names. Raises UsageError if there are none."""
    layers = {
        module: name or type(module).__name__
        for name, module in model.named_modules()
        if isinstance(module, CONVOLUTIONS) and is_converted(module)
    }
    if not layers:
        raise UsageError("the model has no converted convolution: call mucudnn.torch.convert(model) first")
    return layers
