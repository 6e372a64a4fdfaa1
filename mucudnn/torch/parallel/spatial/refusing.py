"""The errors for functions that do not know divided tensors, and that may not run on gathered ones."""

import sys
from collections.abc import Iterator
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import Function, FunctionCtx

from mucudnn.errors import ArgumentTypeError

_INSTEAD = {
    "CheckpointFunction": "call checkpoint with use_reentrant=False",
    "SyncBatchNorm": "take a BatchNorm and divide(…, statistics='all'), which take statistics over all ranks",
}
_GATHER = "gather the tensor first, with gather(), and divide the result again"


class NotInTableError(ArgumentTypeError):
    """A function or its arguments are not in the table, so the function has to run on gathered tensors."""


def name_of(function: Any) -> str:
    """Return the name of a function as messages show it."""
    return getattr(function, "__qualname__", None) or getattr(function, "__name__", None) or repr(function)


def refuse(function: Any, reason: str) -> NotInTableError:
    """Return the error for arguments that a handler does not support."""
    return NotInTableError(f"{name_of(function)} of a divided tensor {reason}")


def check_gradient(local: Tensor) -> None:
    """Raise ArgumentTypeError if a part's gradient would be lost because an autograd.Function is running."""
    if local.requires_grad and not torch.is_grad_enabled():
        check_enclosing()


def check_enclosing() -> None:
    """Raise ArgumentTypeError if the forward pass of an autograd.Function is running."""
    if torch.compiler.is_compiling():  # the compiler cannot trace a walk over frames
        return
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (name := _function_in(frame)) is None:
        frame = frame.f_back
    if frame is not None:
        raise ArgumentTypeError(
            f"{name}, an autograd.Function, does not know divided tensors, and would lose their gradients: "
            f"{_INSTEAD.get(str(name), _GATHER)}"
        )


def _function_in(frame: FrameType) -> str | None:
    """Return the name of the autograd.Function whose forward pass the frame runs, or None."""
    code = frame.f_code
    first = frame.f_locals.get(code.co_varnames[0]) if code.co_argcount else None
    if isinstance(first, FunctionCtx):
        return str(type(first)._forward_cls.__name__)
    # Without a context, which setup_context() gets. A module's forward pass has the same name.
    if code.co_name != "forward" or isinstance(first, nn.Module):
        return None
    kinds = (kind for kind in _kinds_of(Function) if getattr(kind.forward, "__code__", None) is code)
    return next((kind.__name__ for kind in kinds), None)


def _kinds_of(function: type[Function]) -> Iterator[type[Function]]:
    for kind in function.__subclasses__():
        yield kind
        yield from _kinds_of(kind)
