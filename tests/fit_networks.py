"""Twelve small networks and four optimizers, for tests of the predicted memory of a training step."""

import itertools
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

from needs_torch import torch
from torch import Tensor, nn

from bench.lib.models import resnet18, resnet50, vgg16
from examples.unet3d import UNet3d
from mucudnn.measuring.modelled_device import ModelledDevice
from mucudnn.plans.memory.costs import model_costs
from mucudnn.plans.memory.training_step import Costs
from mucudnn.problems.network import Network
from mucudnn.solver import Configuration


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 32, 3, padding=1)
        self.block = nn.Sequential(
            nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 3, padding=1)
        )
        self.last = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x).relu()
        return self.last((x + self.block(x)).mean((2, 3)))


def wide() -> nn.Module:
    """Return a model whose parameters take more memory than its activations."""
    return nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 4096), nn.ReLU(), nn.Linear(4096, 1024))


def plain() -> nn.Module:
    """Return convolutions, norms, a pooling and activations that work in place."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), nn.BatchNorm2d(32), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1),
        nn.Conv2d(32, 64, 3, 1, 1, bias=False), nn.GroupNorm(8, 64), nn.SiLU(), nn.AdaptiveAvgPool2d(1),
        nn.Flatten(), nn.Dropout(0.1), nn.Linear(64, 100),
    )  # fmt: skip


def separable() -> nn.Module:
    """Return depthwise and pointwise convolutions."""
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1)]
    for channels in (32, 64, 128):
        layers += [nn.Conv2d(channels, channels, 3, 1, 1, groups=channels), nn.BatchNorm2d(channels)]
        layers += [nn.Hardswish(), nn.Conv2d(channels, 2 * channels, 1), nn.GELU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10))


def upsampling() -> nn.Module:
    """Return a decoder."""
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 1, 1), nn.LeakyReLU(), nn.Upsample(scale_factor=2), nn.Conv2d(64, 32, 3, 1, 1),
        nn.InstanceNorm2d(32, affine=True), nn.ELU(), nn.ConvTranspose2d(32, 16, 2, 2), nn.Tanh(),
        nn.Conv2d(16, 3, 1),
    )  # fmt: skip


def volume() -> nn.Module:
    """Return a network of volumes."""
    return nn.Sequential(
        nn.Conv3d(1, 16, 3, 1, 1), nn.InstanceNorm3d(16), nn.LeakyReLU(), nn.MaxPool3d(2),
        nn.Conv3d(16, 32, 3, 1, 1), nn.BatchNorm3d(32), nn.ReLU(), nn.ConvTranspose3d(32, 16, 2, 2),
        nn.Conv3d(16, 2, 1),
    )  # fmt: skip


def signal() -> nn.Module:
    """Return a network of signals."""
    return nn.Sequential(
        nn.Conv1d(4, 64, 7, 2, 3), nn.BatchNorm1d(64), nn.ReLU(), nn.Conv1d(64, 64, 5, padding=2),
        nn.Sigmoid(), nn.AvgPool1d(4), nn.Flatten(), nn.Linear(64 * 128, 16),
    )  # fmt: skip


def tokens() -> nn.Module:
    """Return linear layers and norms on tokens."""
    return nn.Sequential(
        nn.Linear(48, 256), nn.LayerNorm(256), nn.GELU(), nn.Linear(256, 64), nn.Dropout(0.1),
        nn.LayerNorm(64), nn.Linear(64, 10), nn.LogSoftmax(-1),
    )  # fmt: skip


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "residual": (Residual, (16, 3, 64, 64)),
    "wide": (wide, (4, 3, 16, 16)),
    "plain": (plain, (16, 3, 64, 64)),
    "separable": (separable, (8, 3, 64, 64)),
    "upsampling": (upsampling, (4, 3, 32, 32)),
    "volume": (volume, (2, 1, 24, 24, 24)),
    "signal": (signal, (16, 4, 1024)),
    "tokens": (tokens, (8, 49, 48)),
    "resnet18": (resnet18, (4, 3, 96, 96)),
    "resnet50": (resnet50, (4, 3, 96, 96)),
    "vgg16": (vgg16, (2, 3, 64, 64)),
    "unet3d": (UNet3d, (1, 1, 32, 32, 32)),
}
OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 1e-3),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 1e-3, momentum=0.9),
    "adam": lambda parameters: torch.optim.Adam(parameters, foreach=True),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, foreach=True),
}
# A network, an optimizer, and whether the steps have autocast and accumulate gradients.
WAYS = list(itertools.product(MODELS, OPTIMIZERS, (False, True), (False, True)))
# MUCUDNN_FIT=all tries every combination, which is slow.
EVERY = os.environ.get("MUCUDNN_FIT") == "all"


def training_steps(
    model: nn.Module, x: Tensor, optimizer: torch.optim.Optimizer, *, is_cast: bool, accumulates: bool
) -> Iterator[None]:
    """Run two updates of the model, and yield after each backward pass."""
    for number in range(4 if accumulates else 2):
        with torch.autocast(x.device.type, torch.bfloat16, enabled=is_cast):
            y = model(x)
        y.sum().backward()
        del y
        if number % 2 or not accumulates:
            optimizer.step()
            optimizer.zero_grad()
        yield


def without_workspaces(network: Network, device: ModelledDevice, *, divide: bool) -> Costs:
    """Return modelled costs in which undivided convolutions take no workspaces."""
    costs = model_costs(network, device, divide=divide)
    free = {
        kernel: Configuration((replace(choice.parts[0], workspace=0),))
        for kernel, choice in costs.undivided.items()
    }
    return replace(costs, undivided=free)
