"""A 3-D U-Net on a volume, within 8 MiB of workspace for each convolution.

Unrolled into matrices (im2col), its convolutions would take many times as much. mucudnn chooses an algorithm
that fits, or divides the volume, which is a single sample, into tiles along its depth, so that a faster
algorithm fits. The result equals that of PyTorch. Run it with `python examples/unet3d.py`.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

LIMIT = "8MiB"


def double(channels: int, out_channels: int) -> nn.Sequential:
    """Return two convolutions that keep the size of the volume."""
    return nn.Sequential(
        nn.Conv3d(channels, out_channels, 3, padding=1), nn.ReLU(),
        nn.Conv3d(out_channels, out_channels, 3, padding=1), nn.ReLU(),
    )  # fmt: skip


class UNet3d(nn.Module):
    """A padded 3-D U-Net modelled on Çiçek et al., 2016, with two levels and a map for each class."""

    def __init__(self, channels: int = 1, classes: int = 3, width: int = 8) -> None:
        super().__init__()
        self.down1, self.down2 = double(channels, width), double(width, 2 * width)
        self.bottom = double(2 * width, 4 * width)
        self.widen2 = nn.ConvTranspose3d(4 * width, 2 * width, 2, stride=2)
        self.up2 = double(4 * width, 2 * width)
        self.widen1 = nn.ConvTranspose3d(2 * width, width, 2, stride=2)
        self.up1 = double(2 * width, width)
        self.out = nn.Conv3d(width, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Map a volume (N, channels, D, H, W) to (N, classes, D, H, W); D, H and W are multiples of 4."""
        fine = self.down1(x)
        coarse = self.down2(nn.functional.max_pool3d(fine, 2))
        bottom = self.bottom(nn.functional.max_pool3d(coarse, 2))
        coarse = self.up2(torch.cat([coarse, self.widen2(bottom)], 1))
        fine = self.up1(torch.cat([fine, self.widen1(coarse)], 1))
        logits: Tensor = self.out(fine)
        return logits


@torch.no_grad()
def main() -> None:
    """Plan, print the workspaces of im2col and of the plan, run the network, and compare with PyTorch."""
    import mucudnn.torch  # imported here to show that the network above needs only PyTorch

    torch.manual_seed(1)
    model, volume = UNet3d().eval(), torch.randn(1, 1, 24, 48, 48)
    expected = model(volume)
    plan = mucudnn.torch.plan(model, volume, workspace=LIMIT)
    print("channels      im2col        chosen")
    for kernel in plan.kernels:
        problem, chosen = kernel.problem, kernel.chosen
        unrolled = problem.in_channels * math.prod(problem.kernel) * math.prod(problem.output) * 4
        print(
            f"{problem.in_channels:3} to {problem.out_channels:2} {unrolled / 2**20:7.1f} MiB "
            f"{chosen.workspace / 2**20:7.1f} MiB  {len(chosen.parts)} × {chosen.parts[0].algorithm}"
        )
    result = mucudnn.torch.convert(model, workspace=LIMIT, plan=plan)(volume)
    worst = (result - expected).abs().max().item()
    print(f"largest difference from PyTorch: {worst:.1e}")
    if worst > 1e-3:
        raise SystemExit("the results differ by more than rounding")


if __name__ == "__main__":
    main()
