"""Functions that join tensors, cut them into pieces, repeat them and move their rows around."""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import torch

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.border import matching_part, redistribute
from mucudnn.torch.parallel.spatial.divided import Divided, axis_of, handles
from mucudnn.torch.parallel.spatial.functions.elementwise import largest
from mucudnn.torch.parallel.spatial.functions.indexing import sliced
from mucudnn.torch.parallel.spatial.functions.resampling import matrix_product
from mucudnn.torch.parallel.spatial.functions.shapes import integers, new_axis
from mucudnn.torch.parallel.spatial.functions.whole_axes import resized
from mucudnn.torch.parallel.spatial.refusing import refuse
from mucudnn.torch.windows.spans import EMPTY, Span, sliding, windows_of, with_rows


@handles("cat", "concat", "concatenate")
def _cat(function: Any, tensors: Sequence[Any], dim: int = 0, *, axis: int | None = None) -> Any:
    kept = [x for x in tensors if not (x.dim() == 1 and x.shape[0] == 0)]  # PyTorch skips such a tensor
    shape = [*kept[0].shape]
    along = (dim if axis is None else axis) % len(shape)
    if len({(x.dim(), *(n for i, n in enumerate(x.shape) if i != along)) for x in kept}) > 1:
        raise UsageError(f"tensors of {', '.join(str(tuple(x.shape)) for x in kept)} do not fit")
    like = largest([x for x in kept if isinstance(x, Divided)])
    if along not in like.divided_axes:
        parts = [matching_part(x, x.shape, like.division) for x in kept]
        return resized(like, torch.cat(parts, along))
    return _joined(kept, along, like)


def _joined(tensors: Sequence[Any], axis: int, like: Divided) -> Divided:
    """Return tensors that are joined along a divided axis."""
    ends = list(accumulate((x.shape[axis] for x in tensors), initial=0))
    shape, parts = with_rows(like.shape, axis, ends[-1]), like.owners(axis).parts(ends[-1])
    pieces = []
    for x, (lo, hi) in zip(tensors, pairwise(ends), strict=True):
        wanted = windows_of([part.meet(Span(lo, hi)) for part in parts], sliding(1, lo, 1))
        same = redistribute(x, like.division)
        pieces.append(same.exchange(axis, wanted).fetch(same.local))
    return Divided(torch.cat(pieces, axis), shape, like.division)


@handles("stack")
def _stack(function: Any, tensors: Sequence[Any], dim: int = 0) -> Any:
    at = dim % (tensors[0].dim() + 1)
    return _cat(
        function, [new_axis(x, at) if isinstance(x, Divided) else x.unsqueeze(at) for x in tensors], at
    )


@handles("chunk", "split", "tensor_split", "split_with_sizes", "unsafe_chunk", "unsafe_split")
def _split(function: Any, x: Divided, split: Any, dim: int = 0) -> tuple[Any, ...]:
    axis = axis_of(x, dim)
    rows = torch.empty(x.shape[axis], device="meta")  # PyTorch cuts it, so the pieces are PyTorch's
    ends = accumulate((len(piece) for piece in function(rows, split)), initial=0)
    return tuple(sliced(x, axis, slice(lo, hi)) for lo, hi in pairwise(ends))


@handles("roll")
def _roll(function: Any, x: Divided, shifts: Any, dims: Any = ()) -> Divided:
    each, axes = ([n] if isinstance(n, int) else list(n) for n in (shifts, dims))
    if len(each) != len(axes):
        raise refuse(function, "over all axes at once is not in the table")
    for shift, dim in zip(each, axes, strict=True):
        axis = axis_of(x, dim)
        if axis in x.divided_axes:
            x = _rolled(x, axis, shift % x.shape[axis])
        else:
            x = x.with_local(torch.roll(x.local, shift, axis))
    return x


def _rolled(x: Divided, axis: int, shift: int) -> Divided:
    """Return a tensor whose rows are moved up along a divided axis; the last rows come first."""
    size, pieces = x.shape[axis], []
    for lo, hi, moved in ((0, shift, size - shift), (shift, size, -shift)):
        met = [part.meet(Span(lo, hi)) for part in x.parts(axis)]
        wanted = windows_of(met, sliding(1, -moved, 1))
        pieces.append(x.exchange(axis, wanted).fetch(x.local))
    return x.with_local(torch.cat(pieces, axis))


@handles("flip")
def _flip(function: Any, x: Divided, *dims: Any) -> Divided:
    axes = [axis_of(x, dim) for dim in integers(dims)]
    local = x.local
    for axis in set(axes) & set(x.divided_axes):
        size = x.shape[axis]
        wanted = [Span(size - part.hi, size - part.lo) if part.size else EMPTY for part in x.parts(axis)]
        local = x.exchange(axis, wanted).fetch(local)
    return x.with_local(local.flip(axes))


@handles("repeat_interleave")
def _repeat_interleave(
    function: Any, x: Divided, repeats: Any, dim: int | None = None, **kwargs: Any
) -> Divided:
    if not isinstance(repeats, int) or dim is None:
        raise refuse(function, "with these arguments is not in the table")
    axis = axis_of(x, dim)
    return matrix_product(x, axis, [[row] for row in range(x.shape[axis]) for _ in range(repeats)], None)


@handles("repeat", "tile")
def _repeat(function: Any, x: Divided, *sizes: Any) -> Divided:
    times = integers(sizes)
    times = [1] * (x.dim() - len(times)) + times
    while x.dim() < len(times):
        x = new_axis(x, 0)
    if any(times[axis] != 1 for axis in x.divided_axes):
        raise refuse(function, "along a divided axis is not in the table")
    return resized(x, x.local.repeat(times))


@handles("expand", "broadcast_to")
def _expand(function: Any, x: Divided, *sizes: Any, size: Any = ()) -> Any:
    shape = integers(sizes or size)
    while x.dim() < len(shape):
        x = new_axis(x, 0)
    whole = [n if n != -1 else x.shape[axis] for axis, n in enumerate(shape)]
    repeated = [name for name, axis in x.division.by_name.items() if whole[axis] != x.shape[axis]]
    y = x.gather(*repeated) if repeated else x  # a single row, which the first rank has
    if not isinstance(y, Divided):
        return y.expand(whole)
    local = [y.local.size(axis) if axis in y.divided_axes else n for axis, n in enumerate(whole)]
    return y.with_local(y.local.expand(local), whole)


@handles("expand_as")
def _expand_as(function: Any, x: Any, other: Any) -> Any:
    return x.expand(other.shape)
