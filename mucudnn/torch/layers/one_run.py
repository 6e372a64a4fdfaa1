"""A run of a model that leaves the model's state as it was."""

from contextlib import nullcontext
from typing import Any

import torch


def run_once(model: Any, example_input: Any) -> None:
    """Run the model uncompiled, and restore its buffers and the random number generators."""
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with (
            torch.random.fork_rng({p.device.index for p in model.parameters() if p.is_cuda}),
            _uncompiled(),
        ):
            model(*(example_input if isinstance(example_input, tuple) else (example_input,)))
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)


def _uncompiled() -> Any:
    """Return a context in which compiled models run uncompiled, because compiled code ignores new hooks."""
    set_stance = getattr(torch.compiler, "set_stance", None)  # since PyTorch 2.6
    return nullcontext() if set_stance is None else set_stance("force_eager")
