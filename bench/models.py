"""Networks as people train them, without a framework's model zoo."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from examples.unet3d import UNet3d

BATCH = 32


def _shortcut(channels: int, out_channels: int, stride: int) -> nn.Module:
    """What is added to a block's convolutions: its input, or that in the shape of their output."""
    if (channels, stride) == (out_channels, 1):
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
    )


class Block(nn.Module):
    """ResNet's basic block."""

    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut = _shortcut(channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """The block's sum with its shortcut."""
        inner = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(inner + self.shortcut(x))


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions, with the stride in the middle one, as people build it today."""

    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        width = out_channels // 4
        self.branch = nn.Sequential(
            nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, out_channels, 1, bias=False), nn.BatchNorm2d(out_channels),
        )  # fmt: skip
        self.shortcut = _shortcut(channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """The block's sum with its shortcut."""
        return torch.relu(self.branch(x) + self.shortcut(x))


def _resnet(block: type[Block | Bottleneck], widths: Sequence[int], counts: Sequence[int]) -> nn.Sequential:
    """K. He et al., Deep residual learning for image recognition, 2015, table 1: blocks of four widths."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, 64, 7, 2, padding=3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
    ]  # fmt: skip
    channels = 64
    for stage, (width, count) in enumerate(zip(widths, counts, strict=True)):
        for number in range(count):
            layers.append(block(channels, width, 2 if stage and not number else 1))
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 1000))


def resnet18() -> nn.Sequential:
    """ResNet-18."""
    return _resnet(Block, (64, 128, 256, 512), (2, 2, 2, 2))


def resnet50() -> nn.Sequential:
    """ResNet-50."""
    return _resnet(Bottleneck, (256, 512, 1024, 2048), (3, 4, 6, 3))


def build(name: str) -> tuple[nn.Module, Tensor]:
    """A network of that name, and a mini-batch for it; the same every time."""
    torch.manual_seed(1)
    if name == "resnet18":
        return resnet18(), torch.randn(BATCH, 3, 224, 224)
    if name == "volume":
        return UNet3d(width=16), torch.randn(1, 1, 64, 128, 128)
    return UNet3d(), torch.randn(BATCH, 1, 32, 32, 32)


# As they are trained on a GPU: how each is made, and the mini-batch; then the mini-batch of a dry run.
TRAINED = {
    "resnet18": (resnet18, (256, 3, 224, 224), (2, 3, 32, 32)),
    "resnet50": (resnet50, (128, 3, 224, 224), (2, 3, 32, 32)),
    "unet3d": (lambda: UNet3d(width=32), (8, 1, 64, 64, 64), (1, 1, 4, 4, 4)),
}


def trained(name: str, *, small: bool) -> tuple[nn.Module, Tensor]:
    """A network of TRAINED and a mini-batch for it; the same every time."""
    torch.manual_seed(1)
    make, shape, small_shape = TRAINED[name]
    return make(), torch.randn(small_shape if small else shape)
