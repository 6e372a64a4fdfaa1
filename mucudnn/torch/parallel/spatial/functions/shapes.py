"""Functions that move, add, remove, merge and split axes."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.border import gather, redistribute
from mucudnn.torch.parallel.spatial.divided import Divided, axis_of, handles
from mucudnn.torch.parallel.spatial.exchange.exchange import Exchange
from mucudnn.torch.parallel.spatial.gathering import note
from mucudnn.torch.parallel.spatial.refusing import refuse
from mucudnn.torch.windows.spans import Span, product


def integers(arguments: Sequence[Any]) -> list[Any]:
    """Return integers that come as arguments of their own or as a single sequence."""
    is_sequence = len(arguments) == 1 and isinstance(arguments[0], Sequence)
    return list(arguments[0] if is_sequence else arguments)


@handles("permute")
def _permute(function: Any, x: Divided, *order: Any, dims: Sequence[int] = ()) -> Divided:
    return _permuted(x, [axis_of(x, axis) for axis in integers(order or dims)])


@handles("transpose", "swapaxes")
def _transpose(function: Any, x: Divided, dim0: int, dim1: int) -> Divided:
    order = list(range(x.dim()))
    first, second = axis_of(x, dim0), axis_of(x, dim1)
    order[first], order[second] = second, first
    return _permuted(x, order)


def _permuted(x: Divided, order: Sequence[int]) -> Divided:
    division = x.division.on_axes([order.index(axis) for axis in x.divided_axes])
    return Divided(x.local.permute(order), [x.shape[axis] for axis in order], division)


@handles("movedim", "moveaxis")
def _movedim(function: Any, x: Divided, source: Any, destination: Any) -> Divided:
    axes = [[axis_of(x, a) for a in (n if isinstance(n, Sequence) else [n])] for n in (source, destination)]
    order = [axis for axis in range(x.dim()) if axis not in axes[0]]
    for at, axis in sorted(zip(axes[1], axes[0], strict=True)):
        order.insert(at, axis)
    return _permuted(x, order)


@handles("t")
def _t(function: Any, x: Divided) -> Divided:
    return _permuted(x, list(range(x.dim()))[::-1])


def new_axis(x: Divided, at: int) -> Divided:
    """Return a tensor with another axis of length one."""
    division = x.division.on_axes([axis + (axis >= at) for axis in x.divided_axes])
    return Divided(x.local.unsqueeze(at), [*x.shape[:at], 1, *x.shape[at:]], division)


@handles("unsqueeze")
def _unsqueeze(function: Any, x: Divided, dim: int) -> Divided:
    return new_axis(x, dim % (x.dim() + 1))


@handles("squeeze")
def _squeeze(function: Any, x: Divided, dim: Any = None) -> Any:
    axes = range(x.dim()) if dim is None else dim if isinstance(dim, Sequence) else [dim]
    named = [axis_of(x, axis) for axis in axes]
    return reshaped(x, [n for axis, n in enumerate(x.shape) if n != 1 or axis not in named])


@handles("flatten")
def _flatten(function: Any, x: Divided, start_dim: int = 0, end_dim: int = -1) -> Any:
    start, end = axis_of(x, start_dim), axis_of(x, end_dim)
    return reshaped(x, [*x.shape[:start], product(x.shape[start : end + 1]), *x.shape[end + 1 :]])


@handles("unflatten")
def _unflatten(function: Any, x: Divided, dim: int, sizes: Sequence[int]) -> Any:
    axis, into = axis_of(x, dim), list(sizes)
    return reshaped(x, [*x.shape[:axis], *_known(into, x.shape[axis]), *x.shape[axis + 1 :]])


@handles("reshape", "view")
def _reshape(function: Any, x: Divided, *sizes: Any, **kwargs: Any) -> Any:
    shape = integers(sizes or (kwargs.get("shape", kwargs.get("size", ())),))
    if not all(isinstance(n, int) for n in shape):
        raise refuse(function, "into another data type is not in the table")
    shape = _known(shape, x.numel())
    if product(shape) != x.numel():
        raise UsageError(f"a tensor of {tuple(x.shape)} cannot have the shape {tuple(shape)}")
    return reshaped(x, shape)


@handles("view_as", "reshape_as")
def _reshape_as(function: Any, x: Any, other: Any) -> Any:
    return x.reshape(other.shape)


def _known(shape: list[int], numel: int) -> list[int]:
    """Return a shape with the length that -1 stands for."""
    if shape.count(-1) != 1:
        return shape
    known = -product(shape)
    return [(numel // known if known else 0) if n == -1 else n for n in shape]


def _groups(before: Sequence[int], after: Sequence[int]) -> list[tuple[range, range]]:
    """Return the axes of two shapes in the smallest groups that have as many elements before as after."""
    groups, i, j = [], 0, 0
    while i < len(before) or j < len(after):
        first, second = i, j
        sizes = [before[i] if i < len(before) else 1, after[j] if j < len(after) else 1]
        i, j = min(i + 1, len(before)), min(j + 1, len(after))
        while sizes[0] != sizes[1]:
            if sizes[0] < sizes[1]:
                sizes[0], i = sizes[0] * before[i], i + 1
            else:
                sizes[1], j = sizes[1] * after[j], j + 1
        groups.append((range(first, i), range(second, j)))
    return groups


def reshaped(x: Divided, shape: list[int]) -> Any:
    """Return a tensor of another shape, divided along an axis of each group that had a divided axis.

    Axes that are merged or split form a group. Its division moves to its first axis, so that parts are
    consecutive elements, which move only as far as the parts of the first axis of the result require.
    `_best_axis` says which axis is divided in the end. A second division of a group is gathered. If axes are
    merged into the features of samples, as where a classifier begins, the result is whole.
    """
    if not x.numel():
        return gather(x).reshape(shape)
    groups, is_gathered = _groups(x.shape, shape), False
    first: dict[str, int] = {}  # the axis of the tensor for each dimension of the mesh
    best: dict[str, int] = {}  # the axis of the result
    for axis, owners in x.division.axes:
        before, after = next(group for group in groups if axis in group[0])
        axes = [a for a in before if x.shape[a] > 1]
        if axes and (axes[0] in x.divided_axes or (len(shape), after.start) != (2, 1)):
            if axes[0] in first.values():
                is_gathered = True
            else:
                first[owners.name], best[owners.name] = axes[0], _best_axis(shape, after, owners.ranks)
    if not first:
        return gather(x).reshape(shape)
    y = _regrouped(redistribute(x, x.division.along(first)), shape, groups)
    if is_gathered:
        note(Tensor.reshape, [y.local], "it merges two divided axes, of which only the first stays divided")
    return redistribute(y, x.division.along(best))


def _best_axis(shape: Sequence[int], after: range, ranks: int) -> int:
    """Return the axis of a group to divide: the first, if it has a row for each rank, else the longest.

    A sequence that becomes a video again is divided along its longest axis. Its frames come first, but are
    few, and a rank with few of them fetches more rows than it has.
    """
    axes = [axis for axis in after if shape[axis] > 1]
    if len(axes) < 3 and shape[axes[0]] >= ranks:
        return axes[0]
    longest = max(shape[axis] for axis in axes)
    return next(axis for axis in axes if shape[axis] == longest)


def _regrouped(x: Divided, shape: list[int], groups: Sequence[tuple[range, range]]) -> Divided:
    """Return a tensor of another shape whose divided axes come first in their groups."""
    local = x.local.reshape([product([x.local.size(axis) for axis in before]) for before, _ in groups])
    final, axes = list(shape), {}
    for at, (before, after) in enumerate(groups):
        for axis, owners in x.division.axes:
            if axis in before:
                to = next(a for a in after if shape[a] > 1)
                own, wanted = (
                    tuple(Span(rows.lo * inner, rows.hi * inner) for rows in owners.parts(size))
                    for size, inner in (
                        (x.shape[axis], product(x.shape[axis + 1 : before.stop])),
                        (shape[to], product(shape[to + 1 : after.stop])),
                    )
                )
                local = Exchange(at, own, wanted, owners).fetch(local)
                final[to], axes[owners.name] = owners.own(shape[to]).size, to
    return Divided(local.reshape(final), shape, x.division.along(axes))
