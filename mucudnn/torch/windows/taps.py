"""Operators whose result is, along an axis, a sum of rows times weights: resampling, and padding by copies.

The weights of resampling come from PyTorch, which interpolates the unit vectors of an axis, so scales,
corners and rounding are PyTorch's own.
"""

from functools import lru_cache, reduce
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

NEAREST = ("nearest", "nearest-exact")
ALONG_AN_AXIS = {
    "linear": "linear",
    "bilinear": "linear",
    "trilinear": "linear",
    "bicubic": "bicubic",
    "area": "area",
}
_FEW = 8  # taps up to which rows are added one after the other; more taps take a matrix product

Taps = tuple[tuple[int, ...], ...]
Weights = tuple[tuple[float, ...], ...]


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


def spread_back(g: Tensor, axis: int, taps: Taps, weights: Weights | None, shape: tuple[int, ...]) -> Tensor:
    """Return the gradient of a window of this shape from that of the sums, of which there is at least one."""
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
    if mode in NEAREST:
        rows = F.interpolate(torch.arange(size, dtype=dtype)[None, None], mode=mode, **options)
        return tuple((int(row),) for row in rows[0, 0]), None
    unit, kind = torch.eye(size, dtype=dtype)[:, None], ALONG_AN_AXIS[mode]
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
