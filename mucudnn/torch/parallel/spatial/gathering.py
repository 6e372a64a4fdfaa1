"""Functions that must see a whole sample: they run on gathered tensors, and their results are divided again.

A warning names each such layer once, because every rank then does the work of all. Other functions `note` a
result that takes more of a rank's memory than its part of the input did.
"""

import sys
import warnings
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from mucudnn.errors import ArgumentTypeError, MucudnnWarning
from mucudnn.torch.parallel.spatial.border import gather, redivide
from mucudnn.torch.parallel.spatial.divided import Divided, handles, logical_tensors
from mucudnn.torch.parallel.spatial.pending import writes
from mucudnn.torch.parallel.spatial.refusing import check_enclosing, name_of

_READING = {Tensor.tolist, Tensor.item, Tensor.numpy, Tensor.__array__, Tensor.__repr__, Tensor.__format__}


class Gathering(NamedTuple):
    """A function that ran on gathered tensors: the layer that called it, and the bytes of these tensors."""

    layer: str
    function: str
    size: int


listeners: list[Callable[[Gathering], None]] = []
_warned: set[tuple[str, str]] = set()


@handles(Divided)
def run_on_whole(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], reason: str) -> Any:
    """Run a function on gathered tensors, and divide its results again where their shape allows.

    A result that has the divided axes of an argument is divided along them. Any other result stays whole.
    Raises ArgumentTypeError within an autograd.Function, and for a function that changes the shape of a
    divided tensor in place.
    """
    check_enclosing()
    if any(isinstance(out, Divided) for out in logical_tensors(kwargs.get("out"))):
        raise ArgumentTypeError(f"{name_of(function)} writes into a divided tensor: call it without out=")
    sources = [tensor for tensor in logical_tensors((args, kwargs)) if isinstance(tensor, Divided)]
    wholes = {id(source): source for source in sources}
    wholes = {key: gather(source) for key, source in wholes.items()}
    note(function, list(wholes.values()), reason)
    whole_args, whole_kwargs = pytree.tree_map(
        lambda leaf: wholes.get(id(leaf), leaf),
        (args, kwargs),
        is_leaf=lambda leaf: isinstance(leaf, Divided),
    )
    if args and isinstance(args[0], Divided) and writes(function):
        changed = whole_args[0].clone()
        function(changed, *whole_args[1:], **whole_kwargs)
        return _written(function, args[0], changed)
    result = function(*whole_args, **whole_kwargs)
    if function in _READING:
        return result
    return pytree.tree_map(lambda y: divide_again(y, sources) if isinstance(y, Tensor) else y, result)


def divide_again(whole: Tensor, sources: Sequence[Divided]) -> Any:
    """Return a whole tensor divided as the first source that has its divided axes, else the tensor."""
    for source in sources:
        if whole.dim() == source.dim() and all(
            whole.size(axis) == source.shape[axis] for axis in source.divided_axes
        ):
            return redivide(whole, source.division)
    return whole


def _written(function: Any, x: Divided, changed: Tensor) -> Divided:
    if changed.shape != x.shape:
        raise ArgumentTypeError(
            f"{name_of(function)} changes the shape of a divided tensor in place, which is not possible"
        )
    x.local.copy_(redivide(changed, x.division).local)
    return x


def note(function: Any, wholes: Sequence[Tensor], reason: str) -> None:
    """Tell listeners of a gathering, and warn unless the layer has gathered for this function before."""
    if torch.compiler.is_compiling():
        return
    event = Gathering(_caller(), name_of(function), sum(x.numel() * x.element_size() for x in wholes))
    for listener in listeners:
        listener(event)
    if (event.layer, event.function) not in _warned and not any(x.is_meta for x in wholes):
        _warned.add((event.layer, event.function))
        why = reason or f"{event.function} is not known for divided tensors"
        warnings.warn(
            f"{event.layer or 'the model'} gathers {event.size:,} bytes on each rank for "
            f"{event.function}, and divides the result again where it can: {why}",
            MucudnnWarning,
            stacklevel=4,
        )


def _caller() -> str:
    """Return the name of the module that is running, as its outermost module names it."""
    frame: FrameType | None = sys._getframe(2)
    running: list[nn.Module] = []
    while frame is not None:
        owner = frame.f_locals.get("self")
        if isinstance(owner, nn.Module) and (not running or running[-1] is not owner):
            running.append(owner)
        frame = frame.f_back
    if not running:
        return ""
    inner, outer = running[0], running[-1]
    names = {module: name for name, module in outer.named_modules()}
    return f"{names.get(inner) or type(inner).__name__} ({type(inner).__name__})"
