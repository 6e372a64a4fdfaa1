"""Functions that take slices and single rows, and functions that take elements at places."""

from collections.abc import Sequence
from numbers import Integral
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.torch.parallel.spatial.border import matching_part, without_axes
from mucudnn.torch.parallel.spatial.divided import Divided, axis_of, handles
from mucudnn.torch.parallel.spatial.functions.shapes import new_axis
from mucudnn.torch.parallel.spatial.functions.whole_axes import resized, whole_axis
from mucudnn.torch.parallel.spatial.refusing import refuse
from mucudnn.torch.windows.spans import Span, for_each_axis, reach, sliding, with_rows


@handles("narrow")
def _narrow(function: Any, x: Divided, dim: int, start: int, length: int) -> Divided:
    axis = axis_of(x, dim)
    start = start % x.shape[axis] if start < 0 else start
    return sliced(x, axis, slice(start, start + length))


@handles("select")
def _select(function: Any, x: Divided, dim: int, index: int) -> Any:
    axis = axis_of(x, dim)
    if not -x.shape[axis] <= index < x.shape[axis]:
        raise IndexError(f"index {index} is out of range for axis {axis} of {tuple(x.shape)}")
    at = index % x.shape[axis]
    if axis in x.divided_axes:  # all owners of the axis get the row
        row = x.exchange(axis, (Span(at, at + 1),) * x.owners(axis).ranks).fetch(x.local).squeeze(axis)
    else:
        row = x.local.select(axis, at)
    return without_axes(x, row, [axis], keepdim=False)


@handles(Tensor.__iter__, "unbind")
def _unbind(function: Any, x: Divided, dim: int = 0) -> Any:
    rows = tuple(_select(function, x, dim, i) for i in range(x.shape[axis_of(x, dim)]))
    return iter(rows) if function is Tensor.__iter__ else rows


def sliced(x: Divided, axis: int, cut: slice) -> Divided:
    """Return the rows of a slice of one axis. Raises NotInTableError for a step below 1."""
    lo, hi, step = cut.indices(x.shape[axis])
    if step < 1:
        raise refuse(slice, "takes a step below 1, which is not in the table")
    rows = len(range(lo, hi, step))
    if axis not in x.divided_axes or rows == x.shape[axis]:
        return x.with_local(
            x.local[(slice(None),) * axis + (cut,)] if rows != x.shape[axis] else x.local,
            with_rows(x.shape, axis, rows),
        )
    fetched = x.exchange_for(axis, rows, sliding(step, -lo, 1)).fetch(x.local)
    local = fetched[(slice(None),) * axis + (slice(None, None, step),)]
    return x.with_local(local, with_rows(x.shape, axis, rows))


@handles(Tensor.unfold)
def _unfold(function: Any, x: Divided, dimension: int, size: int, step: int) -> Divided:
    axis = axis_of(x, dimension)
    count = function(torch.empty(x.shape[axis], device="meta"), 0, size, step).size(0)
    rows = x.exchange_for(axis, count, sliding(step, 0, size)).fetch(x.local)
    local = function(rows, axis, size, step) if rows.size(axis) else rows[..., None].expand(*rows.shape, size)
    return x.with_local(local, [*with_rows(x.shape, axis, count), size])


@handles(F.unfold)
def _unfold_blocks(
    function: Any, input: Divided, kernel_size: Any, dilation: Any = 1, padding: Any = 0, stride: Any = 1
) -> Any:
    rows, columns = for_each_axis(padding, 2)
    x = F.pad(input, (columns, columns, rows, rows))
    for size, space, step in zip(
        *(for_each_axis(n, 2) for n in (kernel_size, dilation, stride)), strict=True
    ):
        x = x.unfold(-2, reach(size, space), step)[..., ::space]  # first the rows, then the columns
    return x.movedim((-2, -1), (-4, -3)).flatten(-2).flatten(-4, -2)


def _keys(x: Divided, key: Any, function: Any) -> list[Any]:
    """Return a key for each axis, in which None stands for a new axis."""
    index: list[Any] = list(key) if isinstance(key, tuple) else [key]
    dots = [at for at, cut in enumerate(index) if cut is Ellipsis]
    axes = sum(cut is not None and cut is not Ellipsis for cut in index)
    if len(dots) > 1 or axes > x.dim():
        raise IndexError(f"[{key!r}] does not fit a tensor of {x.dim()} axes")
    at = dots[0] if dots else len(index)
    index[at : at + len(dots)] = [slice(None)] * (x.dim() - axes)
    return index


@handles(Tensor.__getitem__)
def _item(function: Any, x: Any, key: Any) -> Any:
    if not isinstance(x, Divided):
        raise refuse(function, "as a key of a whole tensor is not in the table")
    index, result, axis = _keys(x, key, function), x, 0
    lists = [cut for cut in index if not (cut is None or isinstance(cut, slice) or _is_integer(cut))]
    if len(lists) > 1 or (lists and any(cut is None or _is_integer(cut) for cut in index)):
        raise refuse(function, "with these keys is not in the table")
    for at, cut in enumerate(index):
        if not isinstance(result, Divided):  # the only divided axis was selected
            return result[(slice(None),) * axis + tuple(index[at:])]
        if cut is None:
            result, axis = new_axis(result, axis), axis + 1
        elif _is_integer(cut):
            result = _select(function, result, axis, int(cut))
        elif isinstance(cut, slice):
            result, axis = sliced(result, axis, cut), axis + 1
        else:
            result, axis = _listed(function, result, axis, cut), axis + 1
    return result


def _is_integer(cut: Any) -> bool:
    if isinstance(cut, Tensor) and not isinstance(cut, Divided):
        return cut.dim() == 0 and not cut.is_floating_point() and cut.dtype != torch.bool
    return isinstance(cut, Integral) and not isinstance(cut, bool)


def _listed(function: Any, x: Divided, axis: int, cut: Any) -> Divided:
    """Return the rows of an undivided axis that a list or a tensor of integers names."""
    places = torch.as_tensor(cut, device=x.device) if isinstance(cut, Sequence | Tensor) else None
    if places is None or isinstance(cut, Divided) or places.dim() != 1 or places.dtype == torch.bool:
        raise refuse(function, "with these keys is not in the table")
    return resized(x, x.local.index_select(whole_axis(x, function, axis), places.long() % x.shape[axis]))


@handles(Tensor.__setitem__)
def _set_item(function: Any, x: Any, key: Any, value: Any) -> None:
    if not isinstance(x, Divided):
        raise refuse(function, "into a whole one is not in the table")
    if isinstance(key, Tensor | Divided) and key.dtype == torch.bool:
        _fill(function, x, key, value)
        return
    index = _keys(x, key, function)
    if any(cut is None or not (isinstance(cut, slice) or _is_integer(cut)) for cut in index):
        raise refuse(function, "with these keys is not in the table")
    for axis in x.divided_axes:
        if not isinstance(index[axis], slice) or index[axis].indices(x.shape[axis]) != (0, x.shape[axis], 1):
            raise refuse(function, "into some rows of a divided axis is not in the table")
    target = _item(function, x, key)
    if isinstance(value, Tensor | Divided):
        target.local.copy_(matching_part(value, target.shape, target.division))
    else:
        target.local.fill_(value)


def _fill(function: Any, x: Divided, mask: Any, value: Any) -> None:
    """Set the elements that a mask chooses to a number."""
    if mask.shape != x.shape or isinstance(value, Divided) or (isinstance(value, Tensor) and value.dim()):
        raise refuse(function, "with this mask or these values is not in the table")
    x.local.masked_fill_(matching_part(mask, x.shape, x.division), value)


@handles("index_select")
def _index_select(function: Any, x: Divided, dim: int, index: Tensor) -> Any:
    return _listed(function, x, axis_of(x, dim), index)


@handles("gather", "take_along_dim")
def _gather_elements(function: Any, x: Divided, dim: int, index: Any, **kwargs: Any) -> Any:
    return resized(x, function(x.local, whole_axis(x, function, dim), _places(function, x, index), **kwargs))


@handles("scatter", "scatter_", "scatter_add", "scatter_add_")
def _scatter(function: Any, x: Divided, dim: int, index: Any, src: Any, **kwargs: Any) -> Any:
    axis = whole_axis(x, function, dim)
    source = _places(function, x, src) if isinstance(src, Tensor | Divided) else src
    return x.with_local(function(x.local, axis, _places(function, x, index), source, **kwargs))


def _places(function: Any, x: Divided, index: Any) -> Tensor:
    """Return the part of an index or source that meets a divided tensor with as long divided axes."""
    if index.dim() != x.dim() or any(index.shape[axis] != x.shape[axis] for axis in x.divided_axes):
        raise refuse(function, f"with an index of {tuple(index.shape)} is not in the table")
    part: Tensor = matching_part(index, [*index.shape], x.division)
    return part


@handles("one_hot")
def _one_hot(function: Any, x: Divided, num_classes: int = -1) -> Divided:
    if num_classes < 1:
        raise refuse(function, "without a number of classes is not in the table")
    return x.with_local(function(x.local, num_classes), [*x.shape, num_classes])


@handles(F.embedding)
def _embedding(function: Any, input: Divided, weight: Tensor, *rest: Any, **kwargs: Any) -> Divided:
    return input.with_local(function(input.local, weight, *rest, **kwargs), [*input.shape, weight.size(1)])
