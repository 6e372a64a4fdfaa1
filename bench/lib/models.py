"""ResNets, VGG-16 and a 3-D U-Net in PyTorch, for a machine without torchvision."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from examples.unet3d import UNet3d


def _shortcut(channels: int, out_channels: int, stride: int) -> nn.Module:
    """Return the module on a block's shortcut: the identity, or a 1x1 convolution if the shape changes."""
    if (channels, stride) == (out_channels, 1):
        return nn.Identity()
    return nn.Sequential(
        nn.Conv2d(channels, out_channels, 1, stride, bias=False), nn.BatchNorm2d(out_channels)
    )


class Block(nn.Module):
    """ResNet's basic block: two 3x3 convolutions, and a shortcut."""

    def __init__(self, channels: int, out_channels: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, out_channels, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(out_channels)
        self.conv2 = nn.Conv2d(out_channels, out_channels, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out_channels)
        self.shortcut = _shortcut(channels, out_channels, stride)

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum of the convolutions and the shortcut, (N, out_channels, H', W')."""
        inner = self.norm2(self.conv2(torch.relu(self.norm1(self.conv1(x)))))
        return torch.relu(inner + self.shortcut(x))


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions, with the stride in the 3x3 one; in the paper the first has it."""

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
        """Return the sum of the convolutions and the shortcut, (N, out_channels, H', W')."""
        return torch.relu(self.branch(x) + self.shortcut(x))


def _resnet(block: type[Block | Bottleneck], widths: Sequence[int], counts: Sequence[int]) -> nn.Sequential:
    """Build a ResNet of four stages; `widths` are their output channels, `counts` their numbers of blocks.

    Source: K. He et al., Deep residual learning for image recognition, 2015, table 1.
    """
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
    """Build ResNet-18."""
    return _resnet(Block, (64, 128, 256, 512), (2, 2, 2, 2))


def resnet50() -> nn.Sequential:
    """Build ResNet-50."""
    return _resnet(Bottleneck, (256, 512, 1024, 2048), (3, 4, 6, 3))


def vgg16() -> nn.Sequential:
    """Build VGG-16.

    Source: K. Simonyan, A. Zisserman, Very deep convolutional networks, 2014, table 1, configuration D.
    """
    layers: list[nn.Module] = []
    channels = 3
    for width, count in ((64, 2), (128, 2), (256, 3), (512, 3), (512, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2))
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(7 * 7 * channels, 4096), nn.ReLU(),
        nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000),
    )  # fmt: skip


# The networks of the GPU bench: constructor, shape of the mini-batch on a GPU, and in a dry run without one.
TRAINED = {
    "resnet18": (resnet18, (256, 3, 224, 224), (2, 3, 32, 32)),
    "resnet50": (resnet50, (128, 3, 224, 224), (2, 3, 32, 32)),
    "unet3d": (lambda: UNet3d(width=32), (8, 1, 64, 64, 64), (1, 1, 4, 4, 4)),
    "vgg16": (vgg16, (256, 3, 224, 224), (1, 3, 32, 32)),
}


def build_trained(name: str, *, small: bool) -> tuple[nn.Module, Tensor]:
    """Build a network of TRAINED, and a mini-batch for it; a fixed seed makes both the same again.

    `small` selects the mini-batch of a dry run.
    """
    torch.manual_seed(1)
    make, shape, small_shape = TRAINED[name]
    return make(), torch.randn(small_shape if small else shape)
