"""Resampling of divided tensors: `interpolate` in all modes, and `pixel_shuffle`.

Every mode except nearest is linear and works axis by axis. PyTorch itself gives the weights: it interpolates
the unit vectors of one axis. So scales, corners and rounding are PyTorch's own. A divided axis is then a
short sum of rows with weights. All other axes go through PyTorch.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.border import gather, redivide
from mucudnn.torch.parallel.spatial.divided import Divided, handles, spelled
from mucudnn.torch.parallel.spatial.exchange.exchange import fetch, give_back, nothing
from mucudnn.torch.parallel.spatial.refusing import refuse
from mucudnn.torch.parallel.spatial.windows import parts, scaled_parts, tapped, windows_of

_NEAREST = ("nearest", "nearest-exact")
_ALONE = {
    "linear": "linear",
    "bilinear": "linear",
    "trilinear": "linear",
    "bicubic": "bicubic",
    "area": "area",
}
_FEW = 8  # taps up to which rows are added one after the other; beyond it, one matrix product

Taps = tuple[tuple[int, ...], ...]
Weights = tuple[tuple[float, ...], ...]


class _Rows(torch.autograd.Function):
    """Sums of rows with weights along one axis of the rank's part; it saves nothing of the tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, given: Any) -> Tensor:
        """Return this rank's part of the result."""
        axis, owned, windows, owners, taps, weights = given
        window = fetch(x, axis, owned, windows, owners)
        ctx.given, ctx.window = given, tuple(window.shape)
        return _combine(window, axis, taps, weights)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the part."""
        axis, owned, windows, owners, taps, weights = ctx.given
        found = _spread_back(g, axis, taps, weights, ctx.window)
        return give_back(found, axis, owned, windows, owners), None


def matrix_product(
    x: Divided, axis: int, taps: Sequence[Sequence[int]], weights: Sequence[Sequence[float]] | None
) -> Divided:
    """Return sums along an axis: output o is the sum of the rows `taps[o]` times `weights[o]`.

    Without weights, each output is a copy of its one row.
    """
    owners, size = x.owners(axis), len(taps)
    outputs = parts(size, owners.ranks)
    windows = windows_of(outputs, tapped(taps))
    own, first = outputs[owners.rank], windows[owners.rank].lo
    mine = tuple(tuple(tap - first for tap in one) for one in taps[own.lo : own.hi])
    weighed = None if weights is None else tuple(map(tuple, weights[own.lo : own.hi]))
    local = _Rows.apply(x.local, (axis, x.parts(axis), windows, owners, mine, weighed))
    return x.with_local(local, [*x.shape[:axis], size, *x.shape[axis + 1 :]])


def _combine(window: Tensor, axis: int, taps: Taps, weights: Weights | None) -> Tensor:
    if not taps:
        return window.narrow(axis, 0, 0).clone()
    if weights is None:
        return window.index_select(axis, _index(taps, 0, window))
    most = max(map(len, taps))
    if most > _FEW:
        matrix = _dense(window, axis, taps, weights)
        return torch.tensordot(window, matrix, ([axis], [0])).movedim(-1, axis).contiguous()
    result = None
    for k in range(most):
        rows = window.index_select(axis, _index(taps, k, window))
        rows = rows * _column(weights, k, window, axis)
        result = rows if result is None else result.add_(rows)
    assert result is not None
    return result


def _spread_back(g: Tensor, axis: int, taps: Taps, weights: Weights | None, shape: tuple[int, ...]) -> Tensor:
    if not taps:
        return nothing(g, shape)
    found = g.new_zeros(shape)
    if weights is None:
        return found.index_add_(axis, _index(taps, 0, g), g)
    most = max(map(len, taps))
    if most > _FEW:
        matrix = _dense(found, axis, taps, weights)
        return torch.tensordot(g, matrix, ([axis], [1])).movedim(-1, axis).contiguous()
    for k in range(most):
        found.index_add_(axis, _index(taps, k, g), g * _column(weights, k, g, axis))
    return found


def _index(taps: Taps, k: int, like: Tensor) -> Tensor:
    return torch.tensor([one[min(k, len(one) - 1)] for one in taps], device=like.device)


def _column(weights: Weights, k: int, like: Tensor, axis: int) -> Tensor:
    """Return the weight of tap k of each output, zero for outputs with fewer taps."""
    values = [one[k] if k < len(one) else 0.0 for one in weights]
    return torch.tensor(values, dtype=like.dtype, device=like.device).reshape(
        -1, *(1,) * (like.dim() - 1 - axis)
    )


def _dense(window: Tensor, axis: int, taps: Taps, weights: Weights) -> Tensor:
    matrix = torch.zeros(window.size(axis), len(taps), dtype=torch.float64)
    for o, (rows, values) in enumerate(zip(taps, weights, strict=True)):
        matrix[list(rows), o] = torch.tensor(values, dtype=torch.float64)
    return matrix.to(dtype=window.dtype, device=window.device)


@lru_cache(1024)
@torch.compiler.assume_constant_result  # a compiler cannot follow positions that it has to read
def taps_of(
    size: int, mode: str, output: int | None, scale: float | None, align: bool | None, recompute: bool | None,
    antialias: bool, exact: bool,
) -> tuple[Taps, Weights | None]:  # fmt: skip
    """Return the rows and weights of each output along an axis, as PyTorch computes them.

    `exact` is True for fp64. PyTorch computes positions in fp32 for all smaller types.
    """
    dtype = torch.float64 if exact else torch.float32
    common: dict[str, Any] = {"size": output, "scale_factor": scale, "recompute_scale_factor": recompute}
    if mode in _NEAREST:
        found = F.interpolate(torch.arange(size, dtype=dtype)[None, None], mode=mode, **common)
        return tuple((int(row),) for row in found[0, 0]), None
    unit = torch.eye(size, dtype=dtype)[:, None]
    kind = _ALONE[mode]
    if kind == "bicubic" or antialias:
        if output is not None:
            common["size"] = (output, 2)
        elif scale is not None:
            common["scale_factor"] = (scale, 1.0)
        mode2d = "bicubic" if kind == "bicubic" else "bilinear"
        columns = F.interpolate(
            unit[..., None].repeat(1, 1, 1, 2),
            mode=mode2d,
            align_corners=align,
            antialias=antialias,
            **common,
        )[:, 0, :, 0]
    elif kind == "area":
        columns = F.interpolate(unit, mode="area", **common)[:, 0]
    else:
        columns = F.interpolate(unit, mode=kind, align_corners=align, **common)[:, 0]
    taps, weights = [], []
    for column in columns.T:
        rows = column.nonzero().flatten().tolist() or [0]
        taps.append(tuple(rows))
        weights.append(tuple(column[rows].tolist()))
    return tuple(taps), tuple(weights)


@handles(F.interpolate)
def _interpolate(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def call(
        input: Divided, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
        align_corners: bool | None = None, recompute_scale_factor: bool | None = None,
        antialias: bool = False,
    ) -> Divided:  # fmt: skip
        dims = input.dim() - 2
        if mode not in (*_NEAREST, *_ALONE) or 1 in input.divided_axes:
            raise refuse(function, f"with mode {mode!r} is not in the table")
        if (size is None) == (scale_factor is None):
            raise UsageError("give either size or scale_factor")
        sizes, scales = _each(size, dims), _each(scale_factor, dims)
        x = input
        for axis in input.divided_axes:
            exact = input.dtype == torch.float64
            given = (
                x.shape[axis],
                mode,
                sizes[axis - 2],
                scales[axis - 2],
                align_corners,
                recompute_scale_factor,
            )
            taps, weights = taps_of(*given, antialias, exact)
            if weights is None and [one[0] for one in taps] == list(range(x.shape[axis])):
                continue
            x = matrix_product(x, axis, taps, weights)
        return _whole_axes(x, input, sizes, scales, mode, align_corners, recompute_scale_factor, antialias)

    return call(*args, **kwargs)


def _whole_axes(
    x: Divided,
    before: Divided,
    sizes: Any,
    scales: Any,
    mode: str,
    align: Any,
    recompute: Any,
    antialias: bool,
) -> Divided:
    """Return the tensor with its undivided axes resampled; its divided axes already are."""
    axes = range(2, x.dim())
    left = [axis for axis in axes if axis not in x.divided_axes]
    if not left:
        return x
    if sizes[0] is not None:
        given: dict[str, Any] = {
            "size": [x.local.size(a) if a in x.divided_axes else sizes[a - 2] for a in axes]
        }
    else:
        given = {"scale_factor": [1.0 if a in x.divided_axes else float(scales[a - 2]) for a in axes]}
    empty = x.local.numel() == 0
    local = x.local
    if empty:  # PyTorch refuses empty tensors: ask one row what the shape becomes
        local = x.local.new_zeros([max(n, 1) for n in x.local.shape])
        if "size" in given:
            given["size"] = [max(n, 1) for n in given["size"]]
    if mode not in _NEAREST and mode != "area":
        given |= {"align_corners": align, "antialias": antialias}
    found = F.interpolate(local, mode=mode, recompute_scale_factor=recompute, **given)
    shape = [x.shape[a] if a < 2 or a in x.divided_axes else found.size(a) for a in range(x.dim())]
    if empty:
        kept = [x.local.size(a) if a < 2 or a in x.divided_axes else found.size(a) for a in range(x.dim())]
        found = nothing(x.local, kept)
    return x.with_local(found, shape)


def _each(value: Any, dims: int) -> tuple[Any, ...]:
    if isinstance(value, Sequence):
        if len(value) != dims:
            raise UsageError(f"{value} has {len(value)} numbers for {dims} spatial axes")
        return tuple(value)
    return (value,) * dims


@handles(F.upsample)
def _upsample(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return _interpolate(F.interpolate, args, kwargs)


@handles(*spelled("pixel_shuffle"), *spelled("pixel_unshuffle"))
def _pixel_shuffle(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    x, factor = args[0], (*args[1:], *kwargs.values())[0]
    if any(axis < x.dim() - 2 for axis in x.divided_axes):
        raise refuse(function, "that is divided on other axes than the last two is not in the table")
    if function is not torch.pixel_shuffle:  # the parts of small rows need not be multiples of the factor
        return redivide(function(gather(x), factor), x.division)
    shape = [*x.shape[:-3], x.shape[-3] // factor**2, x.shape[-2] * factor, x.shape[-1] * factor]
    if x.local.numel():
        local = function(x.local, factor)
    else:  # PyTorch's own gradient fails for a tensor without rows
        local = nothing(x.local, [*shape[:-2], x.local.size(-2) * factor, x.local.size(-1) * factor])
    found = Divided(local, shape, x.division)
    for axis in x.divided_axes:
        owners = x.owners(axis)
        due = found.parts(axis)
        local = fetch(local, axis, scaled_parts(x.shape[axis], owners.ranks, factor), due, owners)
    return found.with_local(local)
