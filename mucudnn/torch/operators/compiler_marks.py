"""Marks that tell `torch.compile` how to treat a function, set without an import of the compiler.

The decorators of `torch.compiler` import `torch._dynamo`, for which every program would wait 1.3 s, although
few compile. The attributes are those that PyTorch 2.9 to 2.13 set and read.
"""

from collections.abc import Callable
from functools import cache, wraps
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])


def keep_result(function: Function) -> Function:
    """Let a compiler call the function while it traces a call of it, and keep the result as a constant.

    This is `torch.compiler.assume_constant_result`.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


def uncompiled(function: Callable[..., Any], reason: str) -> Callable[..., Any]:
    """Return the function for calls of a compiler, which runs it uncompiled, or with `fullgraph` refuses it.

    This is `torch.compiler.disable`, which the first call imports.
    """
    disabled = cache(lambda: torch.compiler.disable(function))

    @wraps(function)
    def run(*arguments: Any) -> Any:
        return disabled()(*arguments)

    run._torchdynamo_disable = True  # type: ignore[attr-defined]
    run._torchdynamo_disable_msg = reason  # type: ignore[attr-defined]
    return run
