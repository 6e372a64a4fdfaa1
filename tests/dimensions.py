"""PyTorch's layers, functions and memory formats, and our functions, by the number of axes."""

from typing import Any

from needs_torch import mt, torch

F = torch.nn.functional
OURS = {1: mt.conv1d, 2: mt.conv2d, 3: mt.conv3d}
STOCK = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
# The keys count all axes of a tensor, not the spatial ones alone.
CHANNELS_LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


def layer_class(name: str, dims: int) -> Any:
    """Return a class such as `nn.Conv2d`, from the part of its name before the number of spatial axes."""
    return getattr(torch.nn, f"{name}{dims}d")
