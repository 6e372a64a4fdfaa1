"""The costs of stages: every rank measures its own stage, and all ranks learn the costs of all stages."""

import statistics
import time
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from mucudnn.solver.devices.pipelines import Stage
from mucudnn.torch.parallel.pipeline.agreement import Agreement
from mucudnn.torch.parallel.pipeline.arguments import Arguments
from mucudnn.torch.parallel.pipeline.shapes import Layout, enter
from mucudnn.torch.parallel.pipeline.stages import unchanged

_RUNS = 3  # after one that warms up


def find_inputs(
    module: nn.Module,
    rank: int,
    micro_batch: Arguments,
    row: Sequence[int],
    agreement: Agreement,
    device: torch.device,
) -> Layout:
    """Return the layout of this rank's inputs, for which all ranks run their stages in order on zeros.

    Every rank raises an error if any stage fails.

    Args:
        module: this rank's stage.
        rank: this process's rank in its pipeline.
        micro_batch: a micro-batch of inputs of the first stage.
        row: the global ranks of this pipeline.
        agreement: the connection to all ranks.
        device: the device of the stage.
    """
    inputs = Layout.of(micro_batch)
    for stage, sender in enumerate(row[:-1]):
        outputs = None
        with agreement.together():
            if stage == rank:
                with unchanged(module, device):
                    outputs = Layout.of(_run(module, inputs, device))
        received = agreement.gather(outputs)[sender]
        if stage + 1 == rank:
            assert received is not None
            inputs = received
    return inputs


def measure_stage(module: nn.Module, inputs: Layout, device: torch.device) -> Stage:
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
            trained = [output for output in outputs.tensors if output.requires_grad]
            if trained:
                torch.autograd.backward(trained, list(map(torch.zeros_like, trained)))
            times.append((middle - start, now() - middle))
    parameters = list(module.parameters())
    for parameter in parameters:
        saved.pop(parameter.untyped_storage().data_ptr(), None)
    received = sum(d.bytes for d in inputs.tensors)
    forward_ms, backward_ms = map(statistics.median, zip(*times[1:], strict=True))
    return Stage(
        forward_ms,
        backward_ms,
        activations=max(sum(saved.values()), received),
        input=received,
        weights=2 * sum(p.numel() * p.element_size() for p in parameters),
    )


def _run(module: nn.Module, inputs: Layout, device: torch.device) -> Arguments:
    """Return a stage's outputs for inputs of zeros."""
    values = inputs.arrange([d.allocate(device).zero_() for d in inputs.tensors])
    try:
        return Arguments.of(enter(values).call(module), "the output of a stage")
    except Exception as error:  # the stage's code may raise any error
        error.add_note(f"in the measurement of a stage with {inputs}")
        raise
