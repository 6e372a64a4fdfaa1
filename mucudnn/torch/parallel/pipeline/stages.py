"""The run of a stage's module on a micro-batch, and what it may not change."""

import random
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mucudnn.torch.parallel.pipeline.arguments import Arguments


def run_stage(module: nn.Module, inputs: Arguments, recomputes: bool) -> Any:
    """Return what a stage returns; it may change its inputs in place.

    With `recomputes`, autograd saves the inputs only, and the backward pass runs the stage again.
    """
    has_run = False

    def run(*tensors: Tensor) -> Any:
        nonlocal has_run
        if not has_run:  # the stage may change its inputs in place, and the second run needs them
            tensors = Arguments(tensors).map(torch.clone).tensors
        has_run = True
        return Arguments(tensors, inputs.names).call(module)

    if not recomputes:
        return inputs.call(module)
    contexts = nullcontext(), unchanged_buffers(module)
    return checkpoint(run, *inputs.tensors, use_reentrant=False, context_fn=lambda: contexts)


_CONTAINERS = dict, OrderedDict, defaultdict, list, set  # a subclass may refuse changes


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


@contextmanager
def unchanged(module: nn.Module, device: torch.device) -> Iterator[None]:
    """Restore a module's buffers, gradients and attributes, and what surrounds it.

    Attributes hold the same objects as before, and their dicts, lists and sets the same elements. Any other
    object that the module's code changes, such as a counter in a dataclass, stays changed.
    """
    gradients = [(parameter, parameter.grad) for parameter in module.parameters()]
    owners = [vars(layer) for layer in module.modules()]
    values = [value for owner in owners for value in owner.values() if type(value) in _CONTAINERS]
    containers: list[tuple[Any, Any]] = [(container, container.copy()) for container in (*owners, *values)]
    try:
        with unchanged_buffers(module), unchanged_surroundings(device):
            yield
    finally:
        for container, before in containers:
            container.clear()
            (container.extend if isinstance(container, list) else container.update)(before)
        for parameter, gradient in gradients:
            parameter.grad = gradient


@contextmanager
def unchanged_surroundings(device: torch.device) -> Iterator[None]:
    """Restore the generators of Python, NumPy and PyTorch afterwards, and the mode of gradients."""
    python, numpy = random.getstate(), np.random.get_state()
    try:
        forked = torch.random.fork_rng([device] if device.type == "cuda" else [])
        with forked, torch.set_grad_enabled(torch.is_grad_enabled()):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)


@contextmanager
def in_mode(modules: Iterable[nn.Module], training: bool) -> Iterator[None]:
    """Put modules into training or evaluation mode, and each of their layers into its own mode afterwards."""
    modes = [(layer, layer.training) for module in modules for layer in module.modules()]
    try:
        for layer, _ in modes:
            layer.training = training
        yield
    finally:
        for layer, was_training in modes:
            layer.training = was_training
