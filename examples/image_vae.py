"""A VAE's decoder, in inference, for a large image that two processes share.

It has the layers of image VAEs: residual blocks with group norms, nearest upsampling, and attention in the
middle. The attention flattens the image, so it runs undivided, at the smallest size. Run it with
`torchrun --nproc-per-node 2 examples/image_vae.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn


class Residual(nn.Module):
    """A residual block: norm, SiLU and convolution, twice."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(4, channels), nn.GroupNorm(4, out_channels)
        self.conv1 = nn.Conv2d(channels, out_channels, 3, padding=1)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1)
        self.skip = nn.Conv2d(channels, out_channels, 1) if channels != out_channels else nn.Identity()

    def forward(self, x: Any) -> Any:
        """Map (N, channels, H, W) to (N, out_channels, H, W)."""
        y = self.conv1(nn.functional.silu(self.norm1(x)))
        return self.skip(x) + self.conv2(nn.functional.silu(self.norm2(y)))


class Attention(nn.Module):
    """Attention between all pixels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Any) -> Any:
        """Return x with the attention added."""
        n, c, h, w = x.shape
        q, k, v = self.qkv(self.norm(x)).reshape(n, 3, c, h * w).transpose(2, 3).unbind(1)
        y = nn.functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(1, 2).reshape(n, c, h, w))


class Decoder(nn.Module):
    """A decoder of latents to images four times as large."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Conv2d(4, 4 * width, 3, padding=1)
        self.middle = nn.Sequential(Residual(4 * width, 4 * width), Attention(4 * width))
        self.up = nn.Sequential(
            Residual(4 * width, 2 * width), nn.Upsample(scale_factor=2),
            nn.Conv2d(2 * width, 2 * width, 3, 1, 1),
            Residual(2 * width, width), nn.Upsample(scale_factor=2), nn.Conv2d(width, width, 3, 1, 1),
        )  # fmt: skip
        self.norm, self.last = nn.GroupNorm(4, width), nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, z: Any) -> Any:
        """Map latents (N, 4, H, W) to images (N, 3, 4·H, 4·W)."""
        return self.last(nn.functional.silu(self.norm(self.up(self.middle(self.first(z))))))


def run(mesh: Any) -> tuple[float, int, int]:
    """Return the error of the image, and the bytes of the largest activation undivided and of this rank."""
    from examples.spatial_common import difference
    from mucudnn.torch import spatial

    torch.manual_seed(1)
    model, z = Decoder().double().eval(), torch.randn(1, 4, 15, 12, dtype=torch.float64)
    largest: list[int] = []
    model.up.register_forward_hook(lambda module, args, y: largest.append(_bytes(y)))
    with torch.no_grad():
        expected = model(z)
        y = model(spatial.divide(z, mesh, {2: "part"}))
    return difference(y.gather(), expected), *largest


def _bytes(x: Any) -> int:
    local = getattr(x, "local", x)
    return int(local.numel() * local.element_size())


def main() -> None:
    """Decode divided and undivided, and compare."""
    from examples.spatial_common import report, start

    report("largest error of the image", *run(start()), limit=1e-12)


if __name__ == "__main__":
    import sys

    sys.path.append(str(Path(__file__).parents[1]))
    main()
