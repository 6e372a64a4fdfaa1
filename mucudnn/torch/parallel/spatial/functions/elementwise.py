"""Functions that work on each element."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.border import divide_further, gather, spread
from mucudnn.torch.parallel.spatial.divided import (
    ELEMENTWISE_OPERATORS,
    Divided,
    Division,
    functions_named,
    handles,
)
from mucudnn.torch.parallel.spatial.refusing import refuse

_ELEMENTWISE = """
abs absolute neg negative exp expm1 log log1p log2 sqrt rsqrt square reciprocal sign sin cos tan tanh atan erf
sigmoid floor ceil round isnan isfinite isinf logical_not nan_to_num clamp clamp_min clamp_max clip
relu relu6 leaky_relu elu selu celu gelu silu mish softplus hardtanh hardswish hardsigmoid logsigmoid softsign
tanhshrink softshrink hardshrink threshold
add sub subtract rsub mul multiply div divide true_divide pow maximum minimum
fmax fmin where lerp addcmul addcdiv fmod
eq ne lt le gt ge logical_and logical_or logical_xor bitwise_and bitwise_or bitwise_not masked_fill
zeros_like ones_like full_like
type float double half bfloat16 long int bool contiguous clone detach cpu cuda requires_grad_
"""
_IN_PLACE = [f"{name}_" for name in _ELEMENTWISE.split() if not name.endswith("_")]
_IN_PLACE += [name for name in ELEMENTWISE_OPERATORS if name.startswith("__i") and name != "__invert__"]


_WRITING = functions_named(*_IN_PLACE)  # they change their first argument
_PLAIN = (int, float, str, torch.dtype, torch.device, type(None))


@handles(*functions_named(*_ELEMENTWISE.split(), *ELEMENTWISE_OPERATORS), *_WRITING)
def run_on_elements(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a function on the parts of divided tensors, and on the matching parts of whole tensors."""
    if kwargs.get("out") is not None:
        raise refuse(function, "into another is not in the table")
    first, *others = args or (None,)
    if isinstance(first, Divided) and all(isinstance(x, _PLAIN) for x in (*others, *kwargs.values())):
        return _with_result(function, first, function(first.local, *others, **kwargs), first.shape)
    leaves, structure = pytree.tree_flatten((args, kwargs), is_leaf=lambda leaf: isinstance(leaf, Divided))
    like = widest(function, [leaf for leaf in leaves if isinstance(leaf, Divided)])
    shapes = [leaf.shape for leaf in leaves if isinstance(leaf, Divided | Tensor)]
    try:
        shape = torch.broadcast_shapes(*shapes)
    except RuntimeError:
        raise UsageError(f"tensors of {_listed(shapes)} do not fit") from None
    if len(shape) != like.dim() or any(shape[axis] != like.shape[axis] for axis in like.divided_axes):
        raise refuse(function, f"with tensors of {_listed(shapes)}")
    parts = [matching_part(leaf, like) for leaf in leaves]
    if function in _WRITING and getattr(leaves[0], "local", None) is not parts[0]:
        raise refuse(function, "in place changes a tensor that is not divided so, which is not in the table")
    args, kwargs = pytree.tree_unflatten(parts, structure)
    return _with_result(function, like, function(*args, **kwargs), shape)


def _listed(shapes: Sequence[Sequence[int]]) -> str:
    return ", ".join(str(tuple(shape)) for shape in shapes)


def _with_result(function: Any, like: Divided, result: Any, shape: Sequence[int]) -> Any:
    if isinstance(result, tuple):  # torch.where of a condition alone: the places in this rank's part
        raise refuse(function, "that returns places of elements is not in the table")
    return like.with_local(result, shape) if isinstance(result, Tensor) else result


def widest(function: Any, tensors: Sequence[Divided]) -> Divided:
    """Return the tensor with the most divided axes, or of several the tensor whose divided axes are longest.

    The others may have been gathered over some dimensions of the mesh. Raises ArgumentTypeError for tensors
    that are divided in different ways.
    """
    like = tensors[0]
    for x in tensors:
        if len(x.division.axes) > len(like.division.axes):
            like = x
    for x in tensors:
        if x.division != like.division:
            continue
        if any(x.shape[axis] > like.shape[axis] for axis in like.divided_axes if axis < x.dim()):
            like = x
    if any(x.dim() != like.dim() or not _is_gathered(x.division, like.division) for x in tensors):
        raise refuse(function, "with tensors that are divided in different ways is not in the table")
    return like


def _is_gathered(division: Division, original: Division) -> bool:
    """Return whether a division is the original, or the rest of it after gathering over some dimensions."""
    return division == original or division == original.keeping(division.names)


def matching_part(leaf: Any, like: Divided) -> Any:
    """Return the part of an operand that meets this rank's part of `like`."""
    if isinstance(leaf, Divided):
        fits = all(leaf.shape[axis] == like.shape[axis] for axis in like.divided_axes)
        if fits:
            return (leaf if leaf.division == like.division else divide_further(leaf, like.division)).local
        leaf = gather(leaf)  # an axis of length one, whose only row the first rank has
    return spread(leaf, like) if isinstance(leaf, Tensor) and leaf.dim() else leaf


@handles(Tensor.to, Tensor.type_as)
def _converted(function: Any, x: Any, *others: Any, **kwargs: Any) -> Any:
    """Return a tensor with the type and device of another tensor, or with those that are named."""
    others = tuple(_local(other) for other in others)
    kwargs = {name: _local(other) for name, other in kwargs.items()}
    result = function(_local(x), *others, **kwargs)
    return x.with_local(result) if isinstance(x, Divided) else result


def _local(x: Any) -> Any:
    return x.local if isinstance(x, Divided) else x


@handles(*functions_named("prelu"))
def _prelu(function: Any, x: Divided, *others: Any, **kwargs: Any) -> Any:
    return x.with_local(function(x.local, *others, **kwargs))


@handles(*(getattr(Tensor, f"new_{name}") for name in ("empty", "zeros", "ones", "full", "tensor")))
def _new(function: Any, x: Divided, *others: Any, **kwargs: Any) -> Any:
    """Return a whole tensor of the same type and on the same device."""
    return function(x.local, *others, **kwargs)
