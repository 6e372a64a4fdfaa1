"""Digests of tensors, by which two computations of the same values are compared."""

import torch
from torch import Tensor

_GOLDEN = 0.6180339887498949  # the fractional parts of its multiples are spread evenly over 0 to 1
_PIECE = 1 << 20  # elements digested at a time, because each takes 8 bytes


def digest(x: Tensor) -> Tensor:
    """Return a sum of all elements with different weights, and the norm."""
    flat = (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).reshape(-1)
    sums = torch.zeros(2, dtype=torch.float64, device=x.device)
    weights = (torch.arange(1, min(_PIECE, len(flat)) + 1, device=x.device).double() * _GOLDEN).frac()
    for i, piece in enumerate(flat.split(_PIECE), 1):
        values = piece.double().nan_to_num(0.0, 1.0, -1.0)
        sums += torch.stack([values @ weights[: len(piece)] * (i * _GOLDEN % 1.0), values @ values])
    return torch.stack([sums[0], sums[1].sqrt()])


def tolerance(dtype: torch.dtype) -> float:
    """Return the difference of two digests, over the norm, that rounding may cause: half of the digits."""
    return torch.finfo(dtype).eps ** 0.5 if dtype.is_floating_point or dtype.is_complex else 0.0
