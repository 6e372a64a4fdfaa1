"""The run of a stage's module on a micro-batch, what it costs, and what it may not change."""

import random
import statistics
import time
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from mucudnn.solver.devices.pipelines import Stage
from mucudnn.torch.parallel.pipeline.arguments import Arguments, enter


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


_RUNS = 3  # after one that warms up


def measure_stage(module: nn.Module, inputs: Arguments, device: torch.device) -> Stage:
    """Return the costs of a stage for one micro-batch of zeros, the median of `_RUNS` runs.

    The weights count twice, because of their gradients. The optimizer's state does not count, because it is
    not known before the first update. Buffers and gradients keep their values.
    """
    saved: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        saved[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    def now() -> float:
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        return time.perf_counter() * 1e3

    times = []
    with unchanged(module, device):
        for _ in range(1 + _RUNS):  # the first run warms up
            saved.clear()
            start = now()
            with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
                outputs = _run(module, inputs, device)
            middle = now()
            if outputs.trained:
                torch.autograd.backward(outputs.trained, list(map(torch.zeros_like, outputs.trained)))
            times.append((middle - start, now() - middle))
    parameters = list(module.parameters())
    for parameter in parameters:
        saved.pop(parameter.untyped_storage().data_ptr(), None)
    received = sum(tensor.nbytes for tensor in inputs.distinct)
    forward_ms, backward_ms = map(statistics.median, zip(*times[1:], strict=True))
    return Stage(
        forward_ms,
        backward_ms,
        activations=max(sum(saved.values()), received),
        input=received,
        weights=2 * sum(p.numel() * p.element_size() for p in parameters),
    )


def _run(module: nn.Module, inputs: Arguments, device: torch.device) -> Arguments:
    """Return a stage's outputs for inputs of zeros."""
    try:
        return Arguments.of(enter(inputs.zeros(device)).call(module), "the output of a stage")
    except Exception as error:  # the stage's code may raise any error
        error.add_note(f"in the measurement of a stage with {inputs}")
        raise


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
