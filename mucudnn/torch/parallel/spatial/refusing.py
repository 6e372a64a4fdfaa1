"""The errors of functions that do not know divided tensors, with advice.

A custom autograd.Function runs without gradients, and takes a divided tensor for a plain object. Its result
would lose the gradient without an error, so the functions within it refuse.
"""

import sys
from typing import Any

import torch

from mucudnn.errors import ArgumentTypeError

GATHER = "gather the tensor first, with gather(), and divide the result again"
_INSTEAD = {
    "CheckpointFunction": "call checkpoint with use_reentrant=False",
    "SyncBatchNorm": "take a BatchNorm and divide(…, statistics='all'), which take statistics over all ranks",
}
_APPLY = torch.autograd.Function.apply.__func__.__code__


def name_of(function: Any) -> str:
    """Return the name of a function as messages show it."""
    return getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or repr(function)


def refuse(function: Any, reason: str) -> ArgumentTypeError:
    """Return the error for arguments that a handler cannot treat."""
    return ArgumentTypeError(f"{name_of(function)} of a divided tensor {reason}: gather the tensor first")


def refuse_unknown(function: Any) -> ArgumentTypeError:
    """Return the error for a function that is not in the table."""
    around = _function_around()
    if around is not None:
        return refuse_within(around)
    return ArgumentTypeError(f"{name_of(function)} does not know divided tensors: {GATHER}")


def refuse_within(around: str) -> ArgumentTypeError:
    """Return the error for a divided tensor within an autograd.Function of this name."""
    return ArgumentTypeError(
        f"{around}, an autograd.Function, does not know divided tensors, and would lose their gradients: "
        f"{_INSTEAD.get(around, GATHER)}"
    )


def check_gradient(local: Any) -> None:
    """Raise ArgumentTypeError if a part's gradient would be lost because an autograd.Function is running."""
    if local.requires_grad and not torch.is_grad_enabled():
        around = _function_around()
        if around is not None:
            raise refuse_within(around)


def _function_around() -> str | None:
    """Return the name of the autograd.Function whose forward pass is running, or None."""
    if torch.compiler.is_compiling():  # the compiler cannot trace a walk over frames
        return None
    frame = sys._getframe(1)
    while frame is not None:
        if frame.f_code is _APPLY:
            return str(frame.f_locals["cls"].__name__)
        frame = frame.f_back  # type: ignore[assignment]
    return None
