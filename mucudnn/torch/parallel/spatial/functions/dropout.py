"""Dropout: each rank draws its own elements, and all ranks draw the same channels.

Modules that drop whole samples make their own masks, which are whole tensors.
"""

from typing import Any

import torch

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.divided import Divided, functions_named, handles
from mucudnn.torch.parallel.spatial.exchange.sharing import from_first


def _seed(x: Divided) -> int:
    """Return a seed that PyTorch's generator gives and on which all ranks that share a sample agree."""
    if x.device.type == "meta":  # a run without data
        return 0
    return int(from_first(torch.randint(2**40, (1,)), x.division.sharing, x.device))


_OF_CHANNELS = functions_named("dropout1d", "dropout2d", "dropout3d", "feature_dropout")


@handles("dropout", *_OF_CHANNELS)
def _dropout(
    function: Any, input: Divided, p: float = 0.5, training: bool = True, inplace: bool = False
) -> Divided:
    if not 0 <= p <= 1:
        raise UsageError(f"dropout probability has to be between 0 and 1, but got {p}")
    if not training or p == 0:
        return input
    x, shape, seed = input.local, [*input.local.shape], _seed(input)
    if function in _OF_CHANNELS:
        shape[2:] = [1] * (x.dim() - 2)
    else:
        seed += input.division.place + 1
    generator = None if x.is_meta else torch.Generator(x.device).manual_seed(seed)
    mask = torch.empty(shape, dtype=x.dtype, device=x.device).bernoulli_(1 - p, generator=generator)
    if p < 1:
        mask /= 1 - p
    return input.with_local(x.mul_(mask) if inplace else x * mask)
