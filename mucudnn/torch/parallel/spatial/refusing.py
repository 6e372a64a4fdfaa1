"""The errors of functions that do not know divided tensors, with advice.

A custom autograd.Function runs without gradients, and treats a divided tensor as a plain object. Its result
would lose the gradient without an error, so the functions that it calls raise one.
"""

import sys
from types import FrameType
from typing import Any

import torch
from torch import Tensor

from mucudnn.errors import ArgumentTypeError

_GATHER = "gather the tensor first, with gather(), and divide the result again"
_INSTEAD = {
    "CheckpointFunction": "call checkpoint with use_reentrant=False",
    "SyncBatchNorm": "take a BatchNorm and divide(…, statistics='all'), which take statistics over all ranks",
}
_APPLY = torch.autograd.Function.apply.__func__.__code__


def name_of(function: Any) -> str:
    """Return the name of a function as messages show it."""
    return getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or repr(function)


def refuse(function: Any, reason: str) -> ArgumentTypeError:
    """Return the error for arguments that a handler does not support."""
    return ArgumentTypeError(f"{name_of(function)} of a divided tensor {reason}: gather the tensor first")


def refuse_unknown(function: Any) -> ArgumentTypeError:
    """Return the error for a function that is not in the table."""
    error = ArgumentTypeError(f"{name_of(function)} does not know divided tensors: {_GATHER}")
    return _refuse_enclosing() or error


def check_gradient(local: Tensor) -> None:
    """Raise ArgumentTypeError if a part's gradient would be lost because an autograd.Function is running."""
    if local.requires_grad and not torch.is_grad_enabled():
        error = _refuse_enclosing()
        if error is not None:
            raise error


def _refuse_enclosing() -> ArgumentTypeError | None:
    """Return the error for the autograd.Function whose forward pass is running, if there is any."""
    if torch.compiler.is_compiling():  # the compiler cannot trace a walk over frames
        return None
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not _APPLY:
        frame = frame.f_back
    if frame is None:
        return None
    name = frame.f_locals["cls"].__name__
    return ArgumentTypeError(
        f"{name}, an autograd.Function, does not know divided tensors, and would lose their gradients: "
        f"{_INSTEAD.get(name, _GATHER)}"
    )
