"""Divided convolutions in PyTorch: functions, and `convert`, which divides those of a model.

    model = mucudnn.torch.convert(model, workspace="16MiB")

The package needs the extra: `pip install 'mucudnn[torch]'`.
"""

from importlib import import_module
from typing import TYPE_CHECKING

from mucudnn.errors import MissingExtraError
from mucudnn.extras import install_command
from mucudnn.forks import no_fork

try:
    import torch as _  # noqa: F401 (checks that PyTorch is installed)
except ImportError:
    raise MissingExtraError(f"mucudnn.torch needs PyTorch: {install_command('torch')}") from None

from mucudnn.torch.layers.convert import convert
from mucudnn.torch.layers.functional import conv1d, conv2d, conv3d
from mucudnn.torch.layers.plan import plan
from mucudnn.torch.layers.summaries import summary
from mucudnn.torch.operators import flops as _flops  # noqa: F401 (its import registers the formulas)

if TYPE_CHECKING:
    from mucudnn.torch.apply_plan import apply, restore
    from mucudnn.torch.benchmarking import benchmark
    from mucudnn.torch.streaming.stream import stream
    from mucudnn.torch.tracing.trace import trace
    from mucudnn.torch.training.fit import largest_batch, will_it_fit
    from mucudnn.torch.training.plan_memory import plan_memory
    from mucudnn.torch.training.recording import record_timeline

__all__ = [
    "apply",
    "benchmark",
    "conv1d",
    "conv2d",
    "conv3d",
    "convert",
    "largest_batch",
    "plan",
    "plan_memory",
    "record_timeline",
    "restore",
    "stream",
    "summary",
    "trace",
    "will_it_fit",
]
_MODULES = ("pipeline", "spatial")  # public too; they need torch.distributed and a newer PyTorch
# The modules of functions that few programs call. Importing them would take as long as all other imports.
_PLACES = {
    "apply": "apply_plan",
    "benchmark": "benchmarking",
    "largest_batch": "training.fit",
    "plan_memory": "training.plan_memory",
    "record_timeline": "training.recording",
    "restore": "apply_plan",
    "stream": "streaming.stream",
    "trace": "tracing.trace",
    "will_it_fit": "training.fit",
}


def __getattr__(name: str) -> object:
    """Import a public module, or the module of a public function, on first use."""
    if name not in _MODULES and name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    with no_fork:
        module = import_module(f"{__name__}.{_PLACES.get(name, name)}")
    value = globals()[name] = module if name in _MODULES else getattr(module, name)
    return value


def __dir__() -> list[str]:
    return sorted([*__all__, *_MODULES])
