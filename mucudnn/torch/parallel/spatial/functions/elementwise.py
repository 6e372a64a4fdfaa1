"""Functions that work on each element."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.border import matching_part, redivide
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
zeros_like ones_like full_like xlogy float_power remainder floor_divide trunc frac log10 exp2
sinh cosh asin acos atan2 hypot logaddexp sinc erfc lgamma digamma heaviside bitwise_xor isclose isposinf
isneginf signbit isreal real conj resolve_conj resolve_neg copysign ldexp deg2rad rad2deg positive
type float double half bfloat16 long int short char byte bool contiguous clone detach cpu cuda requires_grad_
fill zero
"""
_IN_PLACE = [f"{name}_" for name in _ELEMENTWISE.split() if not name.endswith("_")]
_IN_PLACE += [name for name in ELEMENTWISE_OPERATORS if name.startswith("__i") and name != "__invert__"]


_WRITING = functions_named(*_IN_PLACE)  # they change their first argument
_PLAIN = (int, float, str, torch.dtype, torch.device, type(None))


@handles(*_ELEMENTWISE.split(), *ELEMENTWISE_OPERATORS, *_IN_PLACE)
def run_on_elements(function: Any, *args: Any, **kwargs: Any) -> Any:
    """Run a function on the parts of divided tensors, and on the matching parts of whole tensors."""
    first, *others = args or (None,)
    if isinstance(first, Divided) and all(isinstance(x, _PLAIN) for x in (*others, *kwargs.values())):
        return _with_result(function, function(first.local, *others, **kwargs), first.shape, first.division)
    leaves = [*args, *kwargs.values()]
    shapes = [leaf.shape for leaf in leaves if isinstance(leaf, Divided | Tensor)]
    shape = _broadcast(shapes)
    writes = function in _WRITING
    candidates = leaves[:1] if writes else leaves
    like = widest(function, [leaf for leaf in candidates if isinstance(leaf, Divided)], shape)
    division = like.division.on_axes([axis + len(shape) - like.dim() for axis in like.divided_axes])
    parts = [matching_part(leaf, shape, division) for leaf in leaves]
    if writes and (parts[0] is not like.local or shape != like.shape):
        raise refuse(function, f"in place with tensors of {_listed(shapes)} is not in the table")
    named = dict(zip(kwargs, parts[len(args) :], strict=True))
    return _with_result(function, function(*parts[: len(args)], **named), shape, division)


def _broadcast(shapes: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """Return the shape of a result of tensors of these shapes. Raises UsageError.

    `torch.broadcast_shapes` takes longer than all else that a function of elements needs.
    """
    result = [1] * max(map(len, shapes))
    for shape in shapes:
        for axis in range(-len(shape), 0):
            if result[axis] == 1:
                result[axis] = shape[axis]
            elif shape[axis] not in (1, result[axis]):
                raise UsageError(f"tensors of {_listed(shapes)} do not fit")
    return tuple(result)


def _listed(shapes: Sequence[Sequence[int]]) -> str:
    return ", ".join(str(tuple(shape)) for shape in shapes)


def _with_result(function: Any, result: Any, shape: Sequence[int], division: Division) -> Any:
    if isinstance(result, tuple):  # torch.where of a condition alone: the places in this rank's part
        raise refuse(function, "that returns places of elements is not in the table")
    return Divided(result, shape, division) if isinstance(result, Tensor) else result


def widest(function: Any, tensors: Sequence[Divided], shape: Sequence[int]) -> Divided:
    """Return the tensor whose division a result of this shape takes: most divided axes, then most elements.

    The divided axes of the result must be as long as those of the tensor. Raises NotInTableError if no tensor
    fits.
    """
    fitting = [
        x
        for x in tensors
        if all(shape[axis + len(shape) - x.dim()] == x.shape[axis] for axis in x.divided_axes)
    ]
    if not fitting:
        raise refuse(function, f"whose result has the shape {tuple(shape)} is not in the table")
    return largest(fitting)


def largest(tensors: Sequence[Divided]) -> Divided:
    """Return the tensor with the most divided axes, of several the largest, then that with the longest axes.

    The longest divided axes give the most even parts. Of equals the first tensor counts.
    """
    best = tensors[0]
    for x in tensors[1:]:  # compilers do not know max with a key
        if _size(x) > _size(best):
            best = x
    return best


def _size(x: Divided) -> tuple[int, int, int]:
    return len(x.division.axes), x.numel(), min(x.shape[axis] for axis in x.divided_axes)


@handles(Tensor.to, Tensor.type_as)
def _converted(function: Any, x: Any, *others: Any, **kwargs: Any) -> Any:
    """Return a tensor with the type and device of another tensor, or with those that are named."""
    others = tuple(_local(other) for other in others)
    kwargs = {name: _local(other) for name, other in kwargs.items()}
    result = function(_local(x), *others, **kwargs)
    return x.with_local(result) if isinstance(x, Divided) else result


def _local(x: Any) -> Any:
    return x.local if isinstance(x, Divided) else x


@handles("prelu", "empty_like")
def _with_shared_arguments(function: Any, x: Divided, *others: Any, **kwargs: Any) -> Divided:
    """Return the result of a function whose other arguments are the same on all ranks."""
    return x.with_local(function(x.local, *others, **kwargs))


@handles("rand_like", "randn_like")
def _random(function: Any, x: Divided, *others: Any, **kwargs: Any) -> Any:
    """Draw the numbers of the whole on every rank, because generators have the same state; keep the part."""
    return redivide(function(x.local.new_empty(()).expand(x.shape), *others, **kwargs), x.division)


@handles(*(getattr(Tensor, f"new_{name}") for name in ("empty", "zeros", "ones", "full", "tensor")))
def _new(function: Any, x: Divided, *others: Any, **kwargs: Any) -> Any:
    """Return a whole tensor of the same type and on the same device."""
    return function(x.local, *others, **kwargs)
