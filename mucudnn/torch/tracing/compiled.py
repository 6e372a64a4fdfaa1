"""The modules within a model that torch.compile compiles, each by itself, and runs without the compiler."""

import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn


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


def run_once(
    model: Any, example_input: Any, layers: Iterable[Any], record: Callable[[Any, Tensor, Tensor], None]
) -> None:
    """Run the model, calling `record` with the module, the input and the output of each call of a layer.

    The model runs uncompiled, because compiled code would ignore the hooks. Its buffers and the random number
    generators keep their state.
    """

    def hook(module: Any, args: tuple[Tensor, ...], kwargs: dict[str, Tensor], output: Tensor) -> None:
        record(module, args[0] if args else kwargs["input"], output)

    hooks = [layer.register_forward_hook(hook, with_kwargs=True) for layer in layers]
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with (
            torch.random.fork_rng({p.device.index for p in model.parameters() if p.is_cuda}),
            ignored_compiler(),
        ):
            model(*(example_input if isinstance(example_input, tuple) else (example_input,)))
    finally:
        for handle in hooks:
            handle.remove()
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
