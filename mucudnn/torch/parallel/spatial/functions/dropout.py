"""Dropout: each rank draws its own elements, and all ranks draw the same channels.

Modules that drop whole samples make their own masks, which are whole tensors.
"""

from typing import Any

import torch
from torch import Tensor

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.divided import Divided, functions_named, handles
from mucudnn.torch.parallel.spatial.exchange.sharing import from_first


def _seed(x: Divided) -> int:
    """Return a seed that PyTorch's generator gives and on which all ranks that share a sample agree."""
    if x.device.type == "meta":  # a run without data
        return 0
    return int(from_first(torch.randint(2**40, (1,)), x.division.sharing, x.device))


def _generator(x: Divided, seed: int) -> torch.Generator | None:
    return None if x.device.type == "meta" else torch.Generator(x.device).manual_seed(seed)


def _mask(shape: tuple[int, ...], p: float, x: Tensor, generator: torch.Generator | None) -> Tensor:
    kept = torch.empty(shape, dtype=x.dtype, device=x.device).bernoulli_(1 - p, generator=generator)
    return kept / (1 - p) if p < 1 else kept


_OF_CHANNELS = functions_named("dropout1d", "dropout2d", "dropout3d", "feature_dropout")


@handles("dropout", *_OF_CHANNELS)
def _dropout(
    function: Any, input: Divided, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Divided:
    if not 0 <= p <= 1:
        raise UsageError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0:
        return input
    x, seed = input.local, _seed(input)
    if function in _OF_CHANNELS:
        mask = _mask((*x.shape[:2], *(1,) * (x.dim() - 2)), p, x, _generator(input, seed))
    else:
        place = 0
        for _, owners in input.division.axes:
            place = place * owners.ranks + owners.rank
        mask = _mask(tuple(x.shape), p, x, _generator(input, seed + place + 1))
    return input.with_local(x.mul_(mask) if inplace else x * mask)
