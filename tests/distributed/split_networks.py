"""Small networks of other packages, each with an input, for `test_pipeline_split`."""

from __future__ import annotations

from typing import Any

import torch
from programs import imported, imported_torchvision
from torch import nn


def make(name: str) -> tuple[nn.Module, Any]:
    """Return a network and its input."""
    segmentation = imported_torchvision().models.segmentation  # first, because other packages import it
    x: Any = torch.rand(3, 3, 32, 32)
    network: Any
    if name == "UNet2DModel":
        blocks = {"down_block_types": ("AttnDownBlock2D",), "up_block_types": ("AttnUpBlock2D",)}
        network = imported("diffusers").UNet2DModel(
            None, block_out_channels=(32,), attention_head_dim=4, **blocks
        )
        return network, {"sample": x, "timestep": torch.tensor([1, 2, 3])}
    if name == "AutoencoderKL":
        network = imported("diffusers").AutoencoderKL(norm_num_groups=4, block_out_channels=(8,))
    elif name == "DeepLabV3":
        network = segmentation.deeplabv3_resnet50(weights_backbone=None)
    elif name in ("vit_tiny_patch16_224", "resnet18"):
        options = {"img_size": 32, "depth": 3} if "vit" in name else {}
        network = imported("timm").create_model(name, **options)
    else:
        imported("monai")
        from monai.networks import nets

        arguments: dict[str, tuple[Any, ...]] = {
            "BasicUNet": (2, 3, 2, (4, 4, 8, 8, 8, 4)),
            "FlexibleUNet": (3, 2, "efficientnet-b0"),
            "UNet": (2, 3, 2, (4, 8, 16), (2, 2)),
        }
        network = getattr(nets, name)(*arguments[name])
    return network, x


NAMES = (
    "UNet2DModel",
    "AutoencoderKL",
    "DeepLabV3",
    "vit_tiny_patch16_224",
    "resnet18",
    "BasicUNet",
    "FlexibleUNet",
    "UNet",
)
