"""A run of a model that leaves the model's state as it was."""

from typing import Any

import torch

from mucudnn.torch.tracing.compiled import ignored_compiler


def run_once(model: Any, example_input: Any) -> None:
    """Run the model uncompiled, and restore its buffers and the random number generators.

    Compiled code would ignore the hooks that the caller has added for this run.
    """
    buffers = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with (
            torch.random.fork_rng({p.device.index for p in model.parameters() if p.is_cuda}),
            ignored_compiler(),
        ):
            model(*(example_input if isinstance(example_input, tuple) else (example_input,)))
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
