"""Divided convolutions in PyTorch: functions, and `convert`, which divides those of a model.

    model = mucudnn.torch.convert(model, workspace="16MiB")

The package needs the extra: `pip install 'mucudnn[torch]'`.
"""

from importlib import import_module

from mucudnn.errors import MissingExtraError
from mucudnn.extras import install_command
from mucudnn.forks import no_fork

try:
    import torch as _  # noqa: F401 (checks that PyTorch is installed)
except ImportError:
    raise MissingExtraError(f"mucudnn.torch needs PyTorch: {install_command('torch')}") from None

from mucudnn.torch.apply_plan import apply, restore
from mucudnn.torch.layers.convert import convert
from mucudnn.torch.layers.functional import conv1d, conv2d, conv3d
from mucudnn.torch.layers.plan import plan
from mucudnn.torch.layers.summaries import summary
from mucudnn.torch.operators import flops as _flops  # noqa: F401 (its import registers the formulas)
from mucudnn.torch.tracing.trace import trace
from mucudnn.torch.training.fit import largest_batch, will_it_fit
from mucudnn.torch.training.plan_memory import plan_memory
from mucudnn.torch.training.recording import record_timeline

__all__ = [
    "apply",
    "conv1d",
    "conv2d",
    "conv3d",
    "convert",
    "largest_batch",
    "plan",
    "plan_memory",
    "record_timeline",
    "restore",
    "summary",
    "trace",
    "will_it_fit",
]
_MODULES = ("pipeline", "spatial")  # public too, but imported on first use


def __getattr__(name: str) -> object:
    """Import a public module on first use, because it needs torch.distributed and a newer PyTorch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with no_fork:
        return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
