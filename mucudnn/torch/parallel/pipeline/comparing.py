"""The comparison of a model's stages with the model, because a graph does not record all Python code."""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.module import register_module_forward_hook

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.pipeline.arguments import Arguments
from mucudnn.torch.parallel.pipeline.losses import nodes_of
from mucudnn.torch.parallel.pipeline.shapes import Description
from mucudnn.torch.parallel.pipeline.stages import unchanged
from mucudnn.torch.tracing.saved import tensors_in


class _Figures(NamedTuple):
    """The figures of a tensor that are compared.

    Attributes:
        layout: its shape and data type, and whether it has a gradient.
        norm: its norm, and 0 on the meta device.
        projection: its product with fixed random numbers, likewise.
        precision: the largest relative error of one operation.
        unit: the norm of the tensors by which errors in it are measured.
    """

    layout: Description
    norm: float
    projection: float
    precision: float
    unit: float


_Run = list[tuple[str, Any]]
"""The results of a run in order, each with its name: figures of tensors, or another comparable value."""


def check_stages(model: nn.Module, stages: Sequence[fx.GraphModule], example: Arguments) -> None:
    """Raise UsageError, which names the first difference, unless the stages compute what the model does.

    The results of modules are compared, then outputs, buffers and the gradients of a random projection of
    all outputs. The model and its stages run the same kernels with the same random numbers, so they differ
    at most in the order of sums, and half of the digits have to be equal. Both run once forward and backward,
    one after another. A model on the meta device has no values: layouts are compared, which modules run,
    and which operations autograd records.
    """
    places = {
        stage.get_submodule(str(node.target)): f"{node.target} in stage {number}"
        for number, stage in enumerate(stages)
        for node in stage.graph.nodes
        if node.op == "call_module"
    }

    def in_a_row(inputs: Arguments) -> Any:
        for stage in stages[:-1]:
            inputs = Arguments.of(inputs.call(stage), "the output of a stage")
        return inputs.call(stages[-1])

    expected = _run(model, lambda inputs: inputs.call(model), places, example)
    actual = _run(model, in_a_row, places, example)
    before = "the inputs"
    for (name, one), (other, two) in zip_longest(expected, actual, fillvalue=("nothing", None)):
        difference = f"is {other} in the stages" if name != other else _difference(one, two)
        if difference:
            raise UsageError(
                f"the stages would not compute what {type(model).__name__} does. The first difference, "
                f"behind {before}: {name} {difference}. torch.fx records operations on tensors, but no hooks "
                "of the model, nor isinstance or another question about a tensor, so cut the model by hand"
            )
        before = name


def _run(
    model: nn.Module, call: Callable[[Arguments], Any], places: Mapping[nn.Module, str], example: Arguments
) -> _Run:
    """Run a model or its stages on copies of the inputs. The model's state stays as it was."""
    run: _Run = []
    is_meta = any(parameter.is_meta for parameter in model.parameters())
    device = torch.device("meta") if is_meta else example.tensors[0].device

    def note(module: nn.Module, _: Any, result: Any) -> None:
        if module in places:
            run.extend((f"the result of {places[module]}", _measure(t)) for t in tensors_in(result))

    with unchanged(model, device), torch.enable_grad():
        inputs = [t.detach().to(device, copy=True).requires_grad_(t.requires_grad) for t in example.tensors]
        handle = register_module_forward_hook(note)
        try:
            outputs = tensors_in(call(example.but(inputs)))
        finally:
            handle.remove()
        run.extend((f"output {number}", _measure(tensor)) for number, tensor in enumerate(outputs))
        run.extend((f"buffer {name}", _measure(buffer)) for name, buffer in model.named_buffers())
        trained = [output for output in outputs if output.requires_grad]
        recorded = [node.name() for output in trained for node in nodes_of(output)]
        run.extend(("an operation that autograd records", name) for name in recorded)
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        gradients: Sequence[Tensor | None] = [None] * len(parameters)
        if trained and parameters:
            weights = [_weights(output) for output in trained]
            gradients = torch.autograd.grad(trained, [*parameters.values()], weights, allow_unused=True)
    figures = [None if gradient is None else _measure(gradient) for gradient in gradients]
    # A gradient that is zero but for rounding, such as that of a bias before a norm, has the others' errors.
    largest = max((f.norm * f.precision**0.5 for f in figures if f), default=0.0)
    run.extend(
        (f"the gradient of {name}", f and f._replace(unit=f.norm + 100 * largest))
        for name, f in zip(parameters, figures, strict=True)
    )
    return run


def _measure(tensor: Tensor) -> _Figures:
    layout = Description.of(tensor)
    precision = (
        torch.finfo(tensor.dtype).eps if tensor.dtype.is_floating_point or tensor.is_complex() else 0.0
    )
    if tensor.is_meta:
        return _Figures(layout, 0.0, 0.0, precision, 0.0)
    dense = tensor.detach().to_dense().resolve_conj()
    flat = (torch.view_as_real(dense) if dense.is_complex() else dense).flatten()
    flat = flat.to(torch.promote_types(flat.dtype, torch.float32)).nan_to_num(0.1, 0.2, 0.3)
    norm = float(flat.norm())
    return _Figures(layout, norm, float(flat @ _weights(flat)), precision, norm)


def _weights(tensor: Tensor) -> Tensor:
    """Return random numbers of a tensor's layout, always the same."""
    if tensor.is_meta:
        return torch.empty_like(tensor)
    generator = torch.Generator(tensor.device).manual_seed(0)
    return torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype, device=tensor.device)


def _difference(expected: Any, actual: Any) -> str:
    """Return how two results of the same name differ, or nothing."""
    if not (isinstance(expected, _Figures) and isinstance(actual, _Figures)):
        return "" if expected == actual else f"is {expected} in the model and {actual} in the stages"
    if expected.layout != actual.layout:
        return f"is {expected.layout} in the model and {actual.layout} in the stages"
    gap = max(abs(expected.norm - actual.norm), abs(expected.projection - actual.projection))
    if gap <= math.sqrt(expected.precision) * expected.unit:
        return ""
    return f"is off by {gap / (expected.norm or math.inf):.1e} of its norm"
