"""The costs of a stage, which its rank measures."""

import statistics
import time

import torch
from torch import Tensor, nn

from mucudnn.solver.devices.pipelines import Stage
from mucudnn.torch.parallel.pipeline.arguments import Arguments, enter
from mucudnn.torch.parallel.pipeline.stages import unchanged

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
