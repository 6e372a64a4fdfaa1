"""Resampling of divided tensors: `interpolate` in all modes, and `pixel_shuffle`.

Every mode except nearest is linear and works axis by axis. The weights come from PyTorch, which interpolates
the unit vectors of an axis, so scales, corners and rounding are PyTorch's own. On a divided axis each output
is then a short weighted sum of rows. PyTorch itself resamples all other axes.
"""

from collections.abc import Sequence
from functools import lru_cache, reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.border import gather, redivide
from mucudnn.torch.parallel.spatial.divided import Divided, handles
from mucudnn.torch.parallel.spatial.exchange.exchange import Exchange, connected_empty
from mucudnn.torch.parallel.spatial.refusing import refuse
from mucudnn.torch.parallel.spatial.windows import Span, for_each_axis, tapped, with_rows

_NEAREST = ("nearest", "nearest-exact")
_ALONG_AN_AXIS = {
    "linear": "linear",
    "bilinear": "linear",
    "trilinear": "linear",
    "bicubic": "bicubic",
    "area": "area",
}
_FEW = 8  # taps up to which rows are added one after the other; more taps take a matrix product

Taps = tuple[tuple[int, ...], ...]
Weights = tuple[tuple[float, ...], ...]


class _Rows(torch.autograd.Function):
    """Weighted sums of rows along an axis of the rank's part; it saves nothing of the tensor."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, exchange: Exchange, taps: Taps, weights: Weights | None) -> Tensor:
        """Return this rank's part of the result."""
        window = exchange.fetch(x)
        ctx.exchange, ctx.taps, ctx.weights, ctx.window = exchange, taps, weights, tuple(window.shape)
        return combine(window, exchange.axis, taps, weights)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None, None, None]:
        """Return the gradient of the part."""
        window = _spread_back(g, ctx.exchange.axis, ctx.taps, ctx.weights, ctx.window)
        return ctx.exchange.give_back(window), None, None, None


def matrix_product(
    x: Divided, axis: int, taps: Sequence[Sequence[int]], weights: Sequence[Sequence[float]] | None
) -> Divided:
    """Return sums along an axis: output o is the sum of the rows `taps[o]` times `weights[o]`.

    Without weights, each output is a copy of its only row.
    """
    exchange, own = x.exchange_for(axis, len(taps), tapped(taps)), x.owners(axis).own(len(taps))
    own_taps = tuple(tuple(row - exchange.window.lo for row in rows) for rows in taps[own.lo : own.hi])
    own_weights = None if weights is None else tuple(map(tuple, weights[own.lo : own.hi]))
    local = _Rows.apply(x.local, exchange, own_taps, own_weights)
    return x.with_local(local, with_rows(x.shape, axis, len(taps)))


def combine(window: Tensor, axis: int, taps: Taps, weights: Weights | None) -> Tensor:
    """Return sums along an axis: output o is the sum of the rows `taps[o]` of a window times `weights[o]`."""
    if not taps:
        return window.narrow(axis, 0, 0).clone()
    if weights is None:
        return window.index_select(axis, _index(taps, 0, window))
    most = max(map(len, taps))
    if most > _FEW:
        matrix = _dense(window, axis, taps, weights)
        return torch.tensordot(window, matrix, ([axis], [0])).movedim(-1, axis).contiguous()
    terms = (
        window.index_select(axis, _index(taps, k, window)) * _column(weights, k, window, axis)
        for k in range(most)
    )
    return reduce(Tensor.add_, terms)


def _spread_back(g: Tensor, axis: int, taps: Taps, weights: Weights | None, shape: tuple[int, ...]) -> Tensor:
    if not taps:
        return connected_empty(g, shape)
    window = g.new_zeros(shape)
    if weights is None:
        return window.index_add_(axis, _index(taps, 0, g), g)
    most = max(map(len, taps))
    if most > _FEW:
        matrix = _dense(window, axis, taps, weights)
        return torch.tensordot(g, matrix, ([axis], [1])).movedim(-1, axis).contiguous()
    for k in range(most):
        window.index_add_(axis, _index(taps, k, g), g * _column(weights, k, g, axis))
    return window


def _index(taps: Taps, k: int, like: Tensor) -> Tensor:
    return torch.tensor([rows[min(k, len(rows) - 1)] for rows in taps], device=like.device)


def _column(weights: Weights, k: int, like: Tensor, axis: int) -> Tensor:
    """Return the weight of tap k of each output, zero for outputs with fewer taps."""
    values = [row[k] if k < len(row) else 0.0 for row in weights]
    column = torch.tensor(values, dtype=like.dtype, device=like.device)
    return column.reshape(-1, *(1,) * (like.dim() - 1 - axis))


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
    options: dict[str, Any] = {"size": output, "scale_factor": scale, "recompute_scale_factor": recompute}
    if mode in _NEAREST:
        rows = F.interpolate(torch.arange(size, dtype=dtype)[None, None], mode=mode, **options)
        return tuple((int(row),) for row in rows[0, 0]), None
    unit, kind = torch.eye(size, dtype=dtype)[:, None], _ALONG_AN_AXIS[mode]
    if kind != "area":
        options["align_corners"] = align
    if kind == "bicubic" or antialias:  # PyTorch has these in two dimensions only
        if output is not None:
            options["size"] = (output, 2)
        elif scale is not None:
            options["scale_factor"] = (scale, 1.0)
        unit = unit[..., None].repeat(1, 1, 1, 2)
        kind = "bicubic" if kind == "bicubic" else "bilinear"
        columns = F.interpolate(unit, mode=kind, antialias=antialias, **options)[:, 0, :, 0]
    else:
        columns = F.interpolate(unit, mode=kind, **options)[:, 0]
    rows_of = [tuple(column.nonzero().flatten().tolist() or [0]) for column in columns.T]
    weights = [tuple(column[list(rows)].tolist()) for column, rows in zip(columns.T, rows_of, strict=True)]
    return tuple(rows_of), tuple(weights)


@handles(F.interpolate, F.upsample)
def _interpolate(
    function: Any, input: Divided, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Divided:  # fmt: skip
    dims = input.dim() - 2
    if mode not in (*_NEAREST, *_ALONG_AN_AXIS) or 1 in input.divided_axes:
        raise refuse(F.interpolate, f"with mode {mode!r} is not in the table")
    if (size is None) == (scale_factor is None):
        raise UsageError("give either size or scale_factor")
    sizes, scales = for_each_axis(size, dims), for_each_axis(scale_factor, dims)
    x, exact = input, input.dtype == torch.float64
    for axis in input.divided_axes:
        if axis == 0:  # samples
            continue
        taps, weights = taps_of(
            x.shape[axis], mode, sizes[axis - 2], scales[axis - 2], align_corners, recompute_scale_factor,
            antialias, exact,
        )  # fmt: skip
        if weights is not None or [row for (row,) in taps] != list(range(x.shape[axis])):
            x = matrix_product(x, axis, taps, weights)
    options = {"mode": mode, "recompute_scale_factor": recompute_scale_factor}
    if mode not in _NEAREST and mode != "area":
        options |= {"align_corners": align_corners, "antialias": antialias}
    return _resample_whole_axes(x, sizes, scales, options)


def _resample_whole_axes(x: Divided, sizes: Any, scales: Any, options: dict[str, Any]) -> Divided:
    """Return a tensor with its undivided axes resampled, whose divided axes are resampled already."""
    axes = range(2, x.dim())
    if all(axis in x.divided_axes for axis in axes):
        return x
    is_empty = x.local.numel() == 0
    local = x.local
    if is_empty:  # PyTorch refuses empty tensors, so a single row shows the shape of the result
        local = local.new_zeros([max(n, 1) for n in local.shape])
    if sizes[0] is not None:
        options["size"] = [local.size(a) if a in x.divided_axes else sizes[a - 2] for a in axes]
    else:
        options["scale_factor"] = [1.0 if a in x.divided_axes else float(scales[a - 2]) for a in axes]
    result = F.interpolate(local, **options)
    lengths = [result.size(a) if a > 1 and a not in x.divided_axes else 0 for a in range(x.dim())]
    if is_empty:
        result = connected_empty(
            x.local, [new or old for new, old in zip(lengths, x.local.shape, strict=True)]
        )
    return x.with_local(result, [new or old for new, old in zip(lengths, x.shape, strict=True)])


@handles("pixel_shuffle", "pixel_unshuffle")
def _pixel_shuffle(function: Any, x: Divided, *factors: int, **kwargs: int) -> Divided:
    [factor] = (*factors, *kwargs.values())
    if x.dim() - 3 in x.divided_axes:
        raise refuse(function, "whose channels are divided is not in the table")
    if function is not torch.pixel_shuffle:  # the parts of small rows need not be multiples of the factor
        return redivide(function(gather(x), factor), x.division)
    shape = [*x.shape[:-3], x.shape[-3] // factor**2, x.shape[-2] * factor, x.shape[-1] * factor]
    if x.local.numel():
        local = function(x.local, factor)
    else:  # PyTorch's own gradient fails for a tensor without rows
        local = connected_empty(x.local, [*shape[:-2], x.local.size(-2) * factor, x.local.size(-1) * factor])
    result = Divided(local, shape, x.division)
    for axis in set(x.divided_axes) & {x.dim() - 2, x.dim() - 1}:
        owned = tuple(Span(part.lo * factor, part.hi * factor) for part in x.parts(axis))
        local = Exchange(axis, owned, result.parts(axis), x.owners(axis)).fetch(local)
    return result.with_local(local)
