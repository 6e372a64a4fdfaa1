"""The run of a stage's module on a micro-batch."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mucudnn.torch.parallel.pipeline.shapes import as_tuple


def run_stage(module: nn.Module, inputs: Sequence[Tensor], what: str, recomputes: bool) -> tuple[Tensor, ...]:
    """Return the outputs of a stage, which may change its inputs in place.

    With `recomputes`, autograd saves the inputs only, and the backward pass runs the stage again. Raises
    UsageError that names `what` if the outputs are not tensors.
    """
    if recomputes:
        contexts = nullcontext(), unchanged_buffers(module)
        run = _KeepsInputs(module)
        return as_tuple(checkpoint(run, *inputs, use_reentrant=False, context_fn=lambda: contexts), what)
    return as_tuple(module(*inputs), what)


class _KeepsInputs:
    """A stage that runs twice on the same inputs, although it may change them in place."""

    def __init__(self, module: nn.Module) -> None:
        self._module, self._has_run = module, False

    def __call__(self, *inputs: Tensor) -> Any:
        if not self._has_run:
            copies = {tensor: tensor.clone() for tensor in inputs}
            inputs = tuple(copies[tensor] for tensor in inputs)
        self._has_run = True
        return self._module(*inputs)


@contextmanager
def unchanged_buffers(module: nn.Module) -> Iterator[None]:
    """Restore a module's buffers afterwards, because BatchNorm must not count a pass that is not training."""
    buffers = [(buffer, buffer.clone()) for buffer in module.buffers()]
    try:
        yield
    finally:
        with torch.no_grad():
            for buffer, before in buffers:
                buffer.copy_(before)
