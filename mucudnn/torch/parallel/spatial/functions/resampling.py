"""Resampling of divided tensors: `interpolate` in all modes, and `pixel_shuffle`.

Every mode except nearest is linear and works axis by axis. The weights come from PyTorch, which interpolates
the unit vectors of an axis, so scales, corners and rounding are PyTorch's own. On a divided axis each output
is then a short weighted sum of rows. PyTorch itself resamples all other axes.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.border import gather, redivide
from mucudnn.torch.parallel.spatial.divided import Divided, handles
from mucudnn.torch.parallel.spatial.exchange.exchange import Exchange, connected_empty
from mucudnn.torch.parallel.spatial.refusing import refuse
from mucudnn.torch.windows.spans import Span, for_each_axis, tapped, with_rows
from mucudnn.torch.windows.taps import ALONG_AN_AXIS, NEAREST, Taps, Weights, combine, spread_back, taps_of


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
        if ctx.taps:
            window = spread_back(g, ctx.exchange.axis, ctx.taps, ctx.weights, ctx.window)
        else:
            window = connected_empty(g, ctx.window)
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


@handles(F.interpolate, F.upsample)
def _interpolate(
    function: Any, input: Divided, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool | None = None, recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Divided:  # fmt: skip
    dims = input.dim() - 2
    if mode not in (*NEAREST, *ALONG_AN_AXIS) or 1 in input.divided_axes:
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
    if mode not in NEAREST and mode != "area":
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
