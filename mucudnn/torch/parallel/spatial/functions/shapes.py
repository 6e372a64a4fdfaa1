"""Functions that move, add, remove, merge and split axes."""

from collections.abc import Mapping, Sequence
from typing import Any

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.border import gather, redistribute, without_axes
from mucudnn.torch.parallel.spatial.divided import Divided, Division, axis_of, handles
from mucudnn.torch.parallel.spatial.exchange.exchange import Exchange, Owners
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
    gone = [axis for axis in (axis_of(x, a) for a in axes) if x.shape[axis] == 1]
    names = [owners.name for axis, owners in x.division.axes if axis in gone]
    if names:
        x = gather(x, names)
    if not isinstance(x, Divided):
        return x.squeeze(gone)
    return without_axes(x, x.local.squeeze(gone), gone, keepdim=False)


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

    Axes that are merged or split form a group. If a divided axis comes first in its group, the rows of its
    parts are consecutive elements of the group, and move only as far as the parts of the first axis of the
    result require. Any other divided axis is gathered before. `_best_axis` says which axis is divided in the
    end. The result stays whole if it has only samples and features, as where a classifier begins.
    """
    if not x.numel():
        return gather(x).reshape(shape)
    original = x.division
    wanted: dict[str, int | None] = {}  # the axis of the result for each dimension of the mesh
    flat: dict[Owners, tuple[range, range]] = {}  # groups whose divided axis comes first
    for before, after in _groups(x.shape, shape):
        first = next((axis for axis in before if x.shape[axis] > 1), None)
        for axis, owners in original.axes:
            if axis in before:
                wanted[owners.name] = _best_axis(shape, after, owners.ranks)
                if axis == first:
                    flat[owners] = before, after
    others = [owners.name for _, owners in original.axes if owners not in flat]
    y = gather(x, others) if others else x
    result = _regrouped(y, shape, flat) if isinstance(y, Divided) else y.reshape(shape)
    now = result.division.by_name if isinstance(result, Divided) else {}
    if len(shape) < 3 or len(set(wanted.values())) < len(wanted) or None in wanted.values():
        return result
    axes = {name: axis for name, axis in wanted.items() if axis is not None}
    return result if axes == now else redistribute(result, _moved(original, axes))


def _best_axis(shape: Sequence[int], after: range, ranks: int) -> int | None:
    """Return the axis of a group to divide: the first, if it has a row for each rank, else the longest.

    A sequence that becomes a video again is divided along its longest axis. Its frames come first, but are
    few, and a rank with few of them fetches more rows than it has.
    """
    axes = [axis for axis in after if shape[axis] > 1]
    if not axes or (len(axes) < 3 and shape[axes[0]] >= ranks):
        return axes[0] if axes else None
    longest = max(shape[axis] for axis in axes)
    return next(axis for axis in axes if shape[axis] == longest)


def _moved(division: Division, axes: dict[str, int]) -> Division:
    """Return the division over named dimensions of the mesh, along other axes."""
    kept = division.keeping(list(axes))
    return kept.on_axes([axes[name] for name in kept.by_name])


def _regrouped(x: Divided, shape: list[int], flat: Mapping[Owners, tuple[range, range]]) -> Divided:
    """Return a tensor of another shape whose divided axes come first in their groups."""
    of_group = {after.start: (owners, before, after) for owners, (before, after) in flat.items()}
    local_shape, moves, axis = [], [], 0
    while axis < len(shape):
        if axis not in of_group:
            local_shape.append(shape[axis])
            axis += 1
            continue
        owners, before, after = of_group[axis]
        local_shape.append(product([x.local.size(a) for a in before]))
        moves.append((len(local_shape) - 1, owners, before, after))
        axis = after.stop
    local = x.local.reshape(local_shape)
    final: list[int] = list(local_shape)
    axes = {}
    for at, owners, before, after in reversed(moves):
        first = next(a for a in before if x.shape[a] > 1)
        to = next(a for a in after if shape[a] > 1)
        inner, outer = product(x.shape[first + 1 : before.stop]), product(shape[to + 1 : after.stop])
        own, wanted = owners.parts(x.shape[first]), owners.parts(shape[to])
        exchange = Exchange(
            at, tuple(Span(s.lo * inner, s.hi * inner) for s in own),
            tuple(Span(s.lo * outer, s.hi * outer) for s in wanted), owners,
        )  # fmt: skip
        local = exchange.fetch(local)
        rows = wanted[owners.rank].size
        final[at : at + 1] = [rows if a == to else shape[a] for a in after]
        axes[owners.name] = to
    return Divided(local.reshape(final), shape, _moved(x.division, axes))
