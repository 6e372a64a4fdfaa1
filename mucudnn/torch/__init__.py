"""Divided convolutions in PyTorch: functions, and `convert`, which makes a model's own convolutions divide.

    model = mucudnn.torch.convert(model, workspace="16MiB")

The package needs the extra: `pip install 'mucudnn[torch]'`.
"""

from mucudnn.errors import MissingExtraError

try:
    import torch as _  # noqa: F401 (only tests that PyTorch is installed)
except ImportError:
    raise MissingExtraError("mucudnn.torch needs PyTorch: pip install 'mucudnn[torch]'") from None

from mucudnn.torch import flops as _flops  # noqa: F401 (its import registers the formulas)
from mucudnn.torch.apply import apply, restore
from mucudnn.torch.functional import conv1d, conv2d, conv3d
from mucudnn.torch.memory import plan_memory
from mucudnn.torch.modules import convert
from mucudnn.torch.planning import plan
from mucudnn.torch.recording import record_timeline
from mucudnn.torch.summaries import summary
from mucudnn.torch.trace import trace

__all__ = [
    "apply",
    "conv1d",
    "conv2d",
    "conv3d",
    "convert",
    "plan",
    "plan_memory",
    "record_timeline",
    "restore",
    "summary",
    "trace",
]
