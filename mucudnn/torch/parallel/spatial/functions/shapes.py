"""Functions that take slices, and functions that move, add, remove and merge axes."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.border import gather
from mucudnn.torch.parallel.spatial.divided import Divided, axis_of, functions_named, handles
from mucudnn.torch.parallel.spatial.functions.whole_axes import whole_axis
from mucudnn.torch.parallel.spatial.refusing import refuse
from mucudnn.torch.parallel.spatial.windows import product, sliding


@handles(*functions_named("narrow"))
def _narrow(function: Any, x: Divided, dim: int, start: int, length: int) -> Divided:
    index = (slice(None),) * axis_of(x, dim) + (slice(start, start + length),)
    return _item(function, x, index)


@handles(Tensor.__getitem__)
def _item(function: Any, x: Divided, key: Any) -> Divided:
    index: list[Any] = list(key if isinstance(key, tuple) else (key,))
    if Ellipsis in index:
        at = index.index(Ellipsis)
        index[at : at + 1] = [slice(None)] * (x.dim() - len(index) + 1)
    if not all(isinstance(cut, slice) for cut in index) or len(index) > x.dim():
        raise refuse(function, f"[{key!r}] takes other things than slices, which is not in the table")
    local, shape = x.local, list(x.shape)
    for axis, cut in enumerate(index):
        lo, hi, step = cut.indices(x.shape[axis])
        if step < 1:
            raise refuse(function, "takes a step below 1, which is not in the table")
        shape[axis] = len(range(lo, hi, step))
        if axis not in x.divided_axes or shape[axis] == x.shape[axis]:
            local = local[(slice(None),) * axis + (cut,)]
            continue
        exchange = x.exchange_for(axis, shape[axis], sliding(step, -lo, 1))
        local = exchange.fetch(local)[(slice(None),) * axis + (slice(None, None, step),)]
    return x.with_local(local, shape)


def _integers(arguments: Sequence[Any]) -> list[Any]:
    """Return integers that come as arguments of their own or as a single sequence."""
    is_sequence = len(arguments) == 1 and isinstance(arguments[0], Sequence)
    return list(arguments[0] if is_sequence else arguments)


@handles(*functions_named("permute"))
def _permute(function: Any, x: Divided, *order: Any, dims: Sequence[int] = ()) -> Divided:
    return _permuted(x, [axis_of(x, axis) for axis in _integers(order or dims)])


@handles(*functions_named("transpose", "swapaxes"))
def _transpose(function: Any, x: Divided, dim0: int, dim1: int) -> Divided:
    order = list(range(x.dim()))
    first, second = axis_of(x, dim0), axis_of(x, dim1)
    order[first], order[second] = second, first
    return _permuted(x, order)


def _permuted(x: Divided, order: Sequence[int]) -> Divided:
    division = x.division.on_axes([order.index(axis) for axis in x.divided_axes])
    return Divided(x.local.permute(order), [x.shape[axis] for axis in order], division)


@handles(*functions_named("unsqueeze"))
def _unsqueeze(function: Any, x: Divided, dim: int) -> Divided:
    at = dim % (x.dim() + 1)
    division = x.division.on_axes([axis + (axis >= at) for axis in x.divided_axes])
    return Divided(x.local.unsqueeze(at), [*x.shape[:at], 1, *x.shape[at:]], division)


@handles(*functions_named("squeeze"))
def _squeeze(function: Any, x: Divided, dim: Any = None) -> Divided:
    at = whole_axis(x, function, dim)
    if x.shape[at] != 1:
        return x
    division = x.division.on_axes([axis - (axis > at) for axis in x.divided_axes])
    return Divided(x.local.squeeze(at), [*x.shape[:at], *x.shape[at + 1 :]], division)


@handles(*functions_named("flatten"))
def _flatten(function: Any, x: Divided, start_dim: int = 0, end_dim: int = -1) -> Any:
    start, end = axis_of(x, start_dim), axis_of(x, end_dim)
    return _reshaped(x, [*x.shape[:start], product(x.shape[start : end + 1]), *x.shape[end + 1 :]])


@handles(*functions_named("reshape", "view"))
def _reshape(function: Any, x: Divided, *sizes: Any, **kwargs: Any) -> Any:
    shape = _integers(sizes or kwargs.get("shape", kwargs.get("size", ())))
    if not all(isinstance(n, int) for n in shape):
        raise refuse(function, "into another data type is not in the table")
    if shape.count(-1) == 1:
        known = -product(shape)
        shape[shape.index(-1)] = x.numel() // known if known else 0
    if product(shape) != x.numel():
        raise UsageError(f"a tensor of {tuple(x.shape)} cannot have the shape {tuple(shape)}")
    return _reshaped(x, shape)


def _reshaped(x: Divided, shape: list[int]) -> Any:
    """Return a divided tensor if all axes from the first divided axis on stay, else the whole tensor.

    Any other reshaping mixes rows of several ranks, so the tensor is gathered: this is where a network leaves
    its divided part.
    """
    kept = x.dim() - x.divided_axes[0]
    if len(shape) > kept and list(shape[-kept:]) == list(x.shape[-kept:]):
        more = len(shape) - x.dim()
        division = x.division.on_axes([axis + more for axis in x.divided_axes])
        return Divided(x.local.reshape(*shape[:-kept], *x.local.shape[-kept:]), shape, division)
    return gather(x).reshape(shape)
