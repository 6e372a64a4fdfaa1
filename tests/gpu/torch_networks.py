"""The networks that the program trains, with their data, the same in every process."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from bench.lib.models import Block, resnet18
from examples.unet3d import UNet3d

CLASSES = {"resnet18": 1000, "unet3d": 3, "small": 10}


@dataclass
class Task:
    """A network, a mini-batch for it, and its loss."""

    model: nn.Module
    x: Tensor
    target: Tensor

    def loss(self) -> Tensor:
        """Return the loss, in fp32 or fp64 for any type of the network."""
        logits = self.model(self.x)
        wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
        return nn.functional.cross_entropy(wide, self.target)


def small() -> nn.Sequential:
    """Return a network of few convolutions, for settings that take long for each."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU(), Block(64, 64, 1),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, CLASSES["small"]),
    )  # fmt: skip


def make_task(name: str, *, tiny: bool) -> Task:
    """Make the network of this name on the CPU. `tiny` data is small enough for a CPU."""
    torch.manual_seed(1)
    classes = CLASSES[name]
    if name == "unet3d":
        # The lowest level has a quarter of the size. On processors with AVX-512 BF16, PyTorch 2.13 (oneDNN
        # 3.12) computes filter gradients of 2x2x2 volumes wrongly in bf16: they are inf or NaN.
        size = 16 if tiny else 32
        samples = 2 if tiny else 4
        x = torch.randn(samples, 1, size, size, size)
        target = torch.randint(classes, (samples, size, size, size))
        return Task(UNet3d(width=4 if tiny else 16, classes=classes), x, target)
    samples, size = (4, 64) if tiny else (16, 224 if name == "resnet18" else 56)
    x, target = torch.randn(samples, 3, size, size), torch.randint(classes, (samples,))
    return Task(resnet18() if name == "resnet18" else small(), x, target)
