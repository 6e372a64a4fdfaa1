"""The modules of a model that torch.compile compiles, and a context in which they run without it."""

import sys
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn


def is_compiled(module: nn.Module) -> bool:
    """Return whether a module is the result of `torch.compile(module)`, or `module.compile()` compiled it."""
    # The class is known by its name, because its import takes 1.3 s.
    return type(module).__name__ == "OptimizedModule" or module._compiled_call_impl is not None


def compiled_parts(model: nn.Module) -> dict[str, nn.Module]:
    """Return the outermost compiled modules within a model, by name."""
    parts: dict[str, nn.Module] = {}
    for name, module in model.named_modules():  # a module comes before its parts
        if name and is_compiled(module) and not is_within(name, parts):
            parts[name] = module
    return parts


def is_within(name: str, parts: Iterable[str]) -> bool:
    """Return whether a module of this name is one of the parts, or within one."""
    return any(f"{name}.".startswith(f"{part}.") for part in parts)


def ignored_compiler() -> AbstractContextManager[object]:
    """Return a context in which compiled modules run uncompiled.

    Otherwise the compiler would never compile a module again that ran while a mode recorded its operations.
    """
    if "torch._dynamo" not in sys.modules:  # nothing is compiled, and the import takes 1.3 s
        return nullcontext()
    uncompiled: AbstractContextManager[object] = torch.compiler.set_stance("force_eager")
    return uncompiled
