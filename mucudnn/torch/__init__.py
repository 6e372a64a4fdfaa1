"""Divided convolutions in PyTorch: as functions, or in the place of a model's own.

    model = mucudnn.torch.convert(model, workspace="16MiB")

Needs the extra: `pip install 'mucudnn[torch]'`.
"""

from mucudnn.errors import MissingExtraError

try:
    import torch as _  # noqa: F401 (whether it is there)
except ImportError:
    raise MissingExtraError("mucudnn.torch needs PyTorch: pip install 'mucudnn[torch]'") from None

from mucudnn.torch import flops as _flops  # noqa: F401 (registers its formulas)
from mucudnn.torch.functional import conv1d, conv2d, conv3d
from mucudnn.torch.modules import convert, restore
from mucudnn.torch.planning import plan

__all__ = ["conv1d", "conv2d", "conv3d", "convert", "plan", "restore"]
