"""Models for the cases of divided tensors, with their comparison and their bytes."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from spatial_layers import largest
from torch import nn


class Network(nn.Module):
    """A small network with each kind of layer: divided layers, a gathering flatten, and a whole layer."""

    def __init__(self, norm: Callable[[int], nn.Module] = nn.BatchNorm3d, whole: bool = True) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv3d(2, 6, 3, padding=1), norm(6), nn.ReLU(inplace=True))
        self.second = nn.Sequential(nn.Conv3d(6, 6, 3, stride=2, padding=1), norm(6), nn.SiLU())
        self.squeeze = nn.Sequential(nn.AdaptiveAvgPool3d(1), nn.Conv3d(6, 6, 1), nn.Sigmoid())
        self.up = nn.ConvTranspose3d(6, 6, 2, stride=2)
        self.scale = nn.Parameter(torch.rand(1, 6, 1, 1, 1))
        self.last = nn.Linear(6 * 4 * 3 * 3, 3) if whole else nn.Conv3d(6, 3, 1)
        self.whole = whole

    def forward(self, x: Any) -> Any:
        first = self.first(x)
        x = self.second(first)
        x = x * self.squeeze(x) + self.scale
        x = self.up(x) + first
        x = nn.functional.max_pool3d(x, 2)
        return self.last(x.flatten(1) if self.whole else x)


def make(**more: Any) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(3)
    model = Network(**more).double()
    return model, torch.randn(4, 2, 8, 6, 6, dtype=torch.float64)


def compare(model: nn.Module, expected: nn.Module) -> float:
    """Return the largest difference of gradients and buffers."""
    pairs = [(p.grad, q.grad) for p, q in zip(model.parameters(), expected.parameters(), strict=True)]
    pairs += [
        (b, c) for b, c in zip(model.buffers(), expected.buffers(), strict=True) if b.is_floating_point()
    ]
    return max(largest(a, b) for a, b in pairs)


class Skipping(nn.Module):
    """A network whose inner layers may be gathered while a skip connection stays divided."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv3d(2, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU())
        self.inner = nn.Sequential(nn.Conv3d(4, 4, 3, padding=1), nn.BatchNorm3d(4), nn.ReLU())
        self.scale = nn.Parameter(torch.rand(4, 1, 1, 1))
        self.last = nn.Conv3d(8, 2, 3, padding=1)

    def forward(self, x: Any) -> Any:
        first = self.first(x)
        return self.last(torch.cat([self.inner(first) * self.scale, first], 1))


def models() -> dict[str, tuple[nn.Module, torch.Tensor]]:
    """Return networks with inputs, in fp32."""
    from examples.cosmoflow import CosmoFlow
    from examples.image_vae import Decoder
    from examples.unet3d import UNet3d
    from examples.unet3d_divided import normalized

    torch.manual_seed(1)
    return {
        "CosmoFlow": (CosmoFlow(16, width=4), torch.randn(2, 1, 16, 16, 16)),
        "3-D U-Net": (normalized(UNet3d(width=4)), torch.randn(1, 1, 16, 8, 8)),
        "decoder": (Decoder(4), torch.randn(1, 4, 11, 6)),
        "batch norms": (Network(whole=False), torch.randn(4, 2, 8, 6, 6)),
        "skip": (Skipping(), torch.randn(2, 2, 9, 5, 4)),
    }


def whole_of(y: Any) -> torch.Tensor:
    return y if isinstance(y, torch.Tensor) else y.gather()


def peak_of(events: list[Any]) -> int:
    """Return the most bytes that PyTorch held at any time, without the scratch memory of convolutions."""
    spans = [(e.start_ns(), e.start_ns() + e.duration_ns()) for e in events if "aten::conv" in e.name()]
    changes = [(e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]"]
    changes += [(end, 0) for _, end in spans]
    level = peak = 0
    for at, size in sorted(changes):
        level += size
        if not any(begin <= at < end for begin, end in spans):
            peak = max(peak, level)
    return peak


def volume(kernel: Any) -> float:
    """Return a time in proportion to the multiplications of a kernel."""
    problem = kernel.problem
    return problem.in_channels * problem.out_channels * math.prod(problem.output) / 1e7
