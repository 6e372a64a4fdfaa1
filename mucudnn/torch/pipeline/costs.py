"""The costs of stages, measured: every rank times its own stage, and all ranks learn all figures."""

import statistics
import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from mucudnn.solver.pipelines import Stage
from mucudnn.torch.pipeline.shapes import Description, as_tuple

RUNS = 3


def measure_stage(
    module: nn.Module, inputs: Sequence[Description], device: torch.device, *, is_first: bool
) -> Stage:
    """Return the costs of a stage for one micro-batch of zeros, the median of `RUNS` runs.

    The stage's weights count twice, for themselves and for their gradients. The optimizer's state does not
    count, because nobody knows it before the first update. Buffers and gradients keep their values.
    """
    parameters = list(module.parameters())
    gradients = [p.grad for p in parameters]
    buffers = [(b, b.clone()) for b in module.buffers()]
    forward, backward, saved = [], [], 0
    try:
        for _ in range(1 + RUNS):  # the first run warms up
            values = [d.allocate(device).zero_() for d in inputs]
            if not is_first:
                values = [v.requires_grad_(d.has_gradient) for v, d in zip(values, inputs, strict=True)]
            storages = {p.untyped_storage().data_ptr() for p in parameters}
            saved = 0

            def count(tensor: Tensor) -> Tensor:
                nonlocal saved
                storage = tensor.untyped_storage()
                if storage.data_ptr() not in storages:  # noqa: B023 (the hook ends before the next run)
                    storages.add(storage.data_ptr())  # noqa: B023
                    saved += storage.nbytes()
                return tensor

            start = _now(device)
            with torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor):
                outputs = as_tuple(module(*values), "the output of a stage")
            middle = _now(device)
            needed = [o for o in outputs if o.requires_grad]
            if needed:
                torch.autograd.backward(needed, [torch.zeros_like(o) for o in needed])
            end = _now(device)
            forward.append((middle - start) * 1e3)
            backward.append((end - middle) * 1e3)
    finally:
        for parameter, gradient in zip(parameters, gradients, strict=True):
            parameter.grad = gradient
        with torch.no_grad():
            for buffer, value in buffers:
                buffer.copy_(value)
    received = sum(d.bytes for d in inputs)
    return Stage(
        statistics.median(forward[1:]),
        statistics.median(backward[1:]),
        activations=max(saved, received),
        input=received,
        weights=2 * sum(p.numel() * p.element_size() for p in parameters),
    )


def share_costs(own: Stage, ranks: int, group: dist.ProcessGroup) -> list[Stage]:
    """Return the costs of all stages of a pipeline, in their order. Each of its ranks gives its own."""
    gathered: list[Any] = [None] * ranks
    dist.all_gather_object(gathered, own, group=group)
    return gathered


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
