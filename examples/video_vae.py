"""A video VAE's decoder, in inference, for a video that two processes share.

It has the layers of video VAEs: convolutions that are causal in time, norms over the channels, and upsampling
of the frames. The frames are divided along their height. Run it with
`torchrun --nproc-per-node 2 examples/video_vae.py`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn


class CausalConv3d(nn.Conv3d):
    """A convolution that sees no later frames, because it is padded with copies of the first frame."""

    def __init__(self, channels: int, out_channels: int, kernel: int = 3) -> None:
        super().__init__(channels, out_channels, kernel, padding=(0, kernel // 2, kernel // 2))
        self.before = kernel - 1

    def forward(self, x: Any) -> Any:
        """Map (N, channels, T, H, W) to (N, out_channels, T, H, W)."""
        return super().forward(nn.functional.pad(x, (0, 0, 0, 0, self.before, 0), mode="replicate"))


class ChannelNorm(nn.Module):
    """A norm of each pixel's channels to the length √channels."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.scale, self.gamma = channels**0.5, nn.Parameter(torch.ones(channels, 1, 1, 1))

    def forward(self, x: Any) -> Any:
        """Return the normalized tensor."""
        return nn.functional.normalize(x, dim=1) * self.scale * self.gamma


class Block(nn.Module):
    """A residual block."""

    def __init__(self, channels: int, out_channels: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            ChannelNorm(channels), nn.SiLU(), CausalConv3d(channels, out_channels),
            ChannelNorm(out_channels), nn.SiLU(), CausalConv3d(out_channels, out_channels),
        )  # fmt: skip
        self.skip = CausalConv3d(channels, out_channels, 1)

    def forward(self, x: Any) -> Any:
        """Map (N, channels, T, H, W) to (N, out_channels, T, H, W)."""
        return self.skip(x) + self.body(x)


class UpsampleFrames(nn.Module):
    """A layer that turns frames into samples, doubles their sides, and turns them into a video again."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.resample = nn.Sequential(
            nn.Upsample(scale_factor=2, mode="nearest-exact"), nn.Conv2d(channels, channels, 3, padding=1)
        )

    def forward(self, x: Any) -> Any:
        """Map (N, channels, T, H, W) to (N, channels, T, 2·H, 2·W)."""
        n, c, t, h, w = x.shape
        frames = self.resample(x.permute(0, 2, 1, 3, 4).reshape(n * t, c, h, w))
        return frames.reshape(n, t, c, 2 * h, 2 * w).permute(0, 2, 1, 3, 4)


class VideoDecoder(nn.Module):
    """A decoder of latents to frames four times as large."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.body = nn.Sequential(
            CausalConv3d(4, 4 * width), Block(4 * width, 2 * width), UpsampleFrames(2 * width),
            Block(2 * width, width), UpsampleFrames(width), ChannelNorm(width), nn.SiLU(),
        )  # fmt: skip
        self.last = CausalConv3d(width, 3)

    def forward(self, z: Any) -> Any:
        """Map latents (N, 4, T, H, W) to videos (N, 3, T, 4·H, 4·W) between -1 and 1."""
        return self.last(self.body(z)).clamp(-1, 1)


def run(mesh: Any) -> tuple[float, int, int]:
    """Return the error of the video, and the bytes of the largest activation undivided and of this rank."""
    from examples.spatial_common import difference
    from mucudnn.torch import spatial

    torch.manual_seed(1)
    model, z = VideoDecoder().double().eval(), torch.randn(1, 4, 3, 9, 8, dtype=torch.float64)
    largest: list[int] = []
    model.body.register_forward_hook(
        lambda module, args, y: largest.append(getattr(y, "local", y).numel() * z.element_size())
    )
    with torch.no_grad():
        expected = model(z)
        y = model(spatial.divide(z, mesh, {3: "part"}))
    return difference(y.gather(), expected), *largest


def main() -> None:
    """Decode divided and undivided, and compare."""
    from examples.spatial_common import report, start

    report("largest error of the video", *run(start()), limit=1e-12)


if __name__ == "__main__":
    import sys

    sys.path.append(str(Path(__file__).parents[1]))
    main()
