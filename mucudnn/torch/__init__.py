"""Divided convolutions in PyTorch: functions, and `convert`, which makes a model's own convolutions divide.

    model = mucudnn.torch.convert(model, workspace="16MiB")

The package needs the extra: `pip install 'mucudnn[torch]'`.
"""

from mucudnn.errors import MissingExtraError

try:
    import torch as _  # noqa: F401 (only tests that PyTorch is installed)
except ImportError:
    raise MissingExtraError("mucudnn.torch needs PyTorch: pip install 'mucudnn[torch]'") from None

from mucudnn.torch.layers.convert import convert
from mucudnn.torch.layers.functional import conv1d, conv2d, conv3d
from mucudnn.torch.layers.plan import plan
from mucudnn.torch.layers.summaries import summary
from mucudnn.torch.operators import flops as _flops  # noqa: F401 (its import registers the formulas)
from mucudnn.torch.tracing.trace import trace
from mucudnn.torch.training.apply import apply, restore
from mucudnn.torch.training.plan_memory import plan_memory
from mucudnn.torch.training.recording import record_timeline

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
