"""Micro-batching for cuDNN: each convolution as fast as possible within the workspace that you allow."""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from mucudnn.errors import MucudnnError, MucudnnWarning
from mucudnn.forks import load

if TYPE_CHECKING:
    from mucudnn.arrays.convolution import (
        convolution_backward_data,
        convolution_backward_filter,
        convolution_forward,
    )
    from mucudnn.plans.any_plan import read_plan
    from mucudnn.plans.plan import Plan, write_plan

if find_spec("mucudnn._native") is None:
    raise ImportError(
        f"mucudnn is imported from {__path__[0]}, which holds its sources without the compiled part. Python "
        "searches the current folder first: change to another folder, or install the sources in place with "
        "`pip install -e .`",
        name="mucudnn",
    )

__version__ = "0.1.0"

__all__ = [
    "MucudnnError",
    "MucudnnWarning",
    "Plan",
    "convolution_backward_data",
    "convolution_backward_filter",
    "convolution_forward",
    "read_plan",
    "write_plan",
]
_PACKAGES = ("solver", "torch")


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that `import mucudnn` alone is fast."""
    if name in _PACKAGES:
        return load(f"mucudnn.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'mucudnn' has no attribute '{name}'")
    module = "plans.any_plan" if name == "read_plan" else "plans.plan"
    module = "arrays.convolution" if name.startswith("convolution_") else module
    value: object = getattr(load(f"mucudnn.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    packages = [name for name in _PACKAGES if name != "torch" or find_spec(name)]
    return sorted([*__all__, *packages, "__version__"])
