"""The question of a converted module that is traced: whether its convolution is left to the pass."""

import warnings
from functools import cache
from importlib import import_module
from typing import Any

import torch

from mucudnn.arrays.call import limit_of
from mucudnn.errors import MucudnnWarning
from mucudnn.forks import no_fork
from mucudnn.torch.private import keep_result


@keep_result
def is_left_to_inductor(workspace: str | None, device: torch.device) -> bool:
    """Return whether the convolution that is traced now is left to the pass, within this workspace limit.

    That is so if Inductor compiles the graph for the CPU. The first call sets the pass, after the user's own.
    """
    if device.type != "cpu" or (inductor := names_of_inductor()) is None:
        return False
    if not inductor.is_traced_for_inductor():
        return False
    with no_fork:
        # Programs that compile nothing need neither the pass nor its operators.
        from mucudnn.torch.compiling.graph_pass import set_pass

        set_pass()
        inductor.limits_of_traces.setdefault(inductor.present_trace(), []).append(limit_of(workspace))
    return True


@cache
def names_of_inductor() -> Any:
    """Return the module of Inductor's private names. Warn once and return None if PyTorch lacks any."""
    try:
        with no_fork:
            return import_module("mucudnn.torch.compiling.inductor")
    except (ImportError, AttributeError) as error:
        warnings.warn(
            f"PyTorch {torch.__version__} is unknown to mucudnn inside torch.compile ({error}): compiled "
            "convolutions run mucudnn's operators, which Inductor cannot fuse with their neighbours",
            MucudnnWarning,
            stacklevel=2,
        )
        return None
