"""The networks of the tables: torchvision's, and our 3-D U-Net.

torchvision's wheel is built for CUDA, and its own operators cannot load without it. The networks need none of
them. So the operators that torchvision describes at import are declared here, without a body.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from bench.suites.networks.networks import sample_shape
from examples.unet3d import UNet3d

_OPERATORS = "(Tensor boxes, Tensor scores, float threshold) -> Tensor"
_declared: list[torch.library.Library] = []  # kept, because a freed library removes its operators


def build(name: str) -> nn.Module:
    """Build a network with random weights; a fixed seed makes the same again."""
    torch.manual_seed(1)
    if name == "unet3d":
        return UNet3d()
    models = torchvision_models()
    more: dict[str, Any] = {}
    if name in ("googlenet", "inception_v3"):
        more = {"aux_logits": False, "init_weights": False}
    if name.startswith("deeplabv3"):
        more = {"weights": None, "weights_backbone": None}
    built: nn.Module = models.get_model(name, **more)
    return built


def sample_of(name: str, batch: int) -> Tensor:
    """Return a random mini-batch for a network, the same in every call."""
    return torch.randn(batch, *sample_shape(name, batch), generator=torch.Generator().manual_seed(1))


def loss_of(result: Any) -> Tensor:
    """Return a scalar that depends on all of a network's result."""
    y = result["out"] if isinstance(result, dict) else result
    loss: Tensor = y.square().mean()
    return loss


def torchvision_models() -> Any:
    """Return torchvision's module of models, which its wheel for CUDA cannot import without help."""
    try:
        from torchvision import models
    except RuntimeError:
        for module in [module for module in sys.modules if module.partition(".")[0] == "torchvision"]:
            del sys.modules[module]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}{_OPERATORS}")
        _declared.append(library)
        from torchvision import models
    return models
