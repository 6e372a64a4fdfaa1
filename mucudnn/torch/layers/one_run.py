"""A run of a model that records the calls of some layers and leaves the model's state as it was."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

from mucudnn.torch.tracing.compiled import ignored_compiler


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
