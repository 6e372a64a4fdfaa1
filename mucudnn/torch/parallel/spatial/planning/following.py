"""The hooks with which a model follows a spatial plan: they gather inputs of layers or divide them again."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from mucudnn.plans.devices.spatial_plan import SpatialLayer, SpatialStage
from mucudnn.torch.parallel.spatial.border import divide_further, redivide
from mucudnn.torch.parallel.spatial.divided import Divided, Division, logical_tensors


def divide_as_planned(
    model: nn.Module, layers: Sequence[SpatialLayer], stages: Sequence[SpatialStage]
) -> list[RemovableHandle]:
    """Divide the input of each layer, from the first stage on, over the dimensions of the mesh of its stage.

    Removing the handles undoes it.
    """
    follower, starts = _Follower(), {stage.before: stage.divided for stage in stages}
    divided: tuple[str, ...] | None = None
    handles = [model.register_forward_pre_hook(follower.begin, with_kwargs=True)]
    for name in dict.fromkeys(layer.name for layer in layers):
        divided = starts.get(name, divided)
        if divided is not None:
            hook = follower.hook_for(divided)
            handles.append(
                model.get_submodule(name).register_forward_pre_hook(hook, prepend=True, with_kwargs=True)
            )
    return handles


class _Follower:
    """The division of the model's input, from which that of a layer's input follows."""

    def __init__(self) -> None:
        self._division: Division | None = None

    def begin(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Note the division of the model's input."""
        tensors = logical_tensors((args, kwargs))
        self._division = next((x.division for x in tensors if isinstance(x, Divided)), None)

    def hook_for(self, divided: tuple[str, ...]) -> Any:
        """Return a hook that divides inputs over these dimensions of the mesh, and over no others."""

        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            division = self._division  # None if the model runs undivided
            return division and arguments_over(args, kwargs, division, divided)

        return hook


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
        others = [name for name in x.division.names if name not in names]
        x = x.gather(*others) if others else x
    if not isinstance(x, Tensor | Divided):
        return x
    kept = division.keeping([name for name in division.names if name in names])
    own = x.division.by_name if isinstance(x, Divided) else {}
    pairs = zip(kept.axes, kept.names, strict=True)
    missing = [(axis, owners) for (axis, owners), name in pairs if name not in own]
    if not missing or any(
        axis >= x.dim() or x.shape[axis] < owners.ranks or axis in own.values() for axis, owners in missing
    ):
        return x
    if isinstance(x, Divided):
        return divide_further(x, kept) if own.items() <= kept.by_name.items() else x
    return redivide(x, kept)
