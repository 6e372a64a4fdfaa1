"""A PyTorch program that prints whether a sample's bits depend on its mini-batch, and how far a NaN spreads.

`python tests/gpu/torch_promises.py DTYPE...` prints the number of mini-batches that gave samples other bits,
and the most NaN that one NaN makes for each window that reads it.
"""

import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

MOST = 9
# The shapes of x and w, and the arguments of the convolution.
CASES: Any = (
    ((60, 1, 3), (16, 60, 1, 1), {}),
    ((16, 14, 14), (16, 16, 3, 3), {"padding": 1}),
    ((500, 4, 4), (6, 500, 3, 3), {"padding": 1}),
    ((3, 21, 21), (16, 3, 7, 7), {"stride": 2}),
    ((6, 5, 6, 7), (4, 3, 3, 3, 3), {"groups": 2}),
)


def values(*shape: int) -> Tensor:
    """Return values that differ much in size, so that the order of additions shows in their sums."""
    return (torch.randn(shape) * 2.0 ** torch.randint(-6, 6, shape)).cuda()


def convolve(x: Tensor, w: Tensor, sizes: dict[str, Any]) -> tuple[Tensor, Tensor]:
    """Return the result and the gradient of the input."""
    x = x.clone().requires_grad_()
    y = (F.conv2d if x.dim() == 4 else F.conv3d)(x, w, **sizes)
    y.backward(y.detach())
    assert x.grad is not None
    return y.detach(), x.grad


def count_other_bits(dtypes: list[torch.dtype]) -> int:
    """Return in how many smaller mini-batches samples get other bits than in the largest."""
    count = 0
    for size, filter_, sizes in CASES:
        for dtype in dtypes:
            x, w = values(MOST, *size).to(dtype), values(*filter_).to(dtype)
            whole = convolve(x, w, sizes)
            for n, first in ((1, 0), (1, 8), (2, 3), (5, 4)):
                part = convolve(x[first : first + n], w, sizes)
                pairs = zip(part, whole, strict=True)
                count += any(not torch.equal(own, all_[first : first + n]) for own, all_ in pairs)
    return count


def spread_of_nan(channels: int, side: int) -> float:
    """Return the number of NaN in a result for each window that reads a NaN."""
    x, w = values(2, channels, side, side), values(channels, channels, 3, 3)
    x[0, 3, 5, 7] = torch.nan
    return int(F.conv2d(x, w).isnan().sum()) / (9 * channels)


if __name__ == "__main__":
    torch.manual_seed(1)
    torch.backends.cudnn.allow_tf32 = False
    # Winograd's algorithms spread a NaN. Two sizes, because at one a busy moment can make them lose the race.
    spread = max(spread_of_nan(64, 28), spread_of_nan(64, 56))
    print(count_other_bits([getattr(torch, name) for name in sys.argv[1:]]), spread)
