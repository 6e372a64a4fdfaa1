"""The hooks with which a model follows a spatial plan: they gather inputs of layers or divide them again."""

from collections.abc import Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mucudnn.plans.devices.spatial_plan import SpatialLayer, SpatialStage
from mucudnn.torch.parallel.spatial.border import redivide
from mucudnn.torch.parallel.spatial.divided import Divided, Division, logical_tensors


def divide_as_planned(
    model: nn.Module, layers: Sequence[SpatialLayer], stages: Sequence[SpatialStage]
) -> list[RemovableHandle]:
    """Divide the input of each layer, from the first stage on, over the dimensions of the mesh of its stage.

    Removing the handles undoes it.
    """
    division: Division | None = None  # that of the model's input, or None if the model runs undivided

    def begin(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        nonlocal division
        tensors = logical_tensors((args, kwargs))
        division = next((x.division for x in tensors if isinstance(x, Divided)), None)

    def divide(names: tuple[str, ...], module: nn.Module, args: Any, kwargs: dict[str, Any]) -> Any:
        return division and arguments_over(args, kwargs, division, names)

    starts = {stage.before: stage.divided for stage in stages}
    divided: tuple[str, ...] | None = None
    handles = [model.register_forward_pre_hook(begin, with_kwargs=True)]
    for name in dict.fromkeys(layer.name for layer in layers):
        divided = starts.get(name, divided)
        if divided is not None:
            hook, layer = partial(divide, divided), model.get_submodule(name)
            handles.append(layer.register_forward_pre_hook(hook, prepend=True, with_kwargs=True))
    return handles


def arguments_over(
    args: tuple[Any, ...], kwargs: dict[str, Any], division: Division, names: Sequence[str]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a layer's arguments, with tensors divided over some dimensions of the mesh."""
    by_name = {key: divided_over(x, division, names) for key, x in kwargs.items()}
    return tuple(divided_over(x, division, names) for x in args), by_name


def divided_over(x: Any, division: Division, names: Sequence[str]) -> Any:
    """Return a tensor divided over some dimensions of the mesh, along the axes of a division.

    A tensor that lacks such an axis, or a row for each rank, stays as it is, and so does anything else.
    """
    if isinstance(x, Divided):
        others = [name for name in x.division.by_name if name not in names]
        x = x.gather(*others) if others else x
    if not isinstance(x, Tensor | Divided):
        return x
    kept = division.keeping(names)
    own = x.division.by_name if isinstance(x, Divided) else {}
    missing = [(axis, owners) for axis, owners in kept.axes if owners.name not in own]
    if not missing or any(
        axis >= x.dim() or x.shape[axis] < owners.ranks or axis in own.values() for axis, owners in missing
    ):
        return x
    return redivide(x, kept) if own.items() <= kept.by_name.items() else x
