"""The networks of the tables: torchvision's, and our 3-D U-Net."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from bench.lib.vision import import_torchvision
from bench.suites.networks.networks import sample_shape
from examples.unet3d import UNet3d


def build(name: str) -> nn.Module:
    """Build a network with random weights; a fixed seed makes the same again."""
    torch.manual_seed(1)
    if name == "unet3d":
        return UNet3d()
    more: dict[str, Any] = {}
    if name in ("googlenet", "inception_v3"):
        more = {"aux_logits": False, "init_weights": False}
    if name.startswith("deeplabv3"):
        more = {"weights": None, "weights_backbone": None}
    built: nn.Module = import_torchvision().models.get_model(name, **more)
    return built


def sample_of(name: str, batch: int) -> Tensor:
    """Return a random mini-batch for a network, the same in every call."""
    return torch.randn(batch, *sample_shape(name, batch), generator=torch.Generator().manual_seed(1))


def loss_of(result: Any) -> Tensor:
    """Return a scalar that depends on all of a network's result."""
    y = result["out"] if isinstance(result, dict) else result
    loss: Tensor = y.square().mean()
    return loss
