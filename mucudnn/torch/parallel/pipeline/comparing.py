"""The comparison of a model's stages with the model, because a graph does not record all Python code."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn.modules.module import register_module_forward_hook

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.digests import digest, tolerance
from mucudnn.torch.parallel.pipeline.arguments import Arguments
from mucudnn.torch.parallel.pipeline.shapes import Description
from mucudnn.torch.parallel.pipeline.stages import unchanged
from mucudnn.torch.tracing.saved import tensors_in


def check_stages(model: nn.Module, stages: Sequence[fx.GraphModule], example: Arguments) -> None:
    """Raise UsageError, which names the first difference, unless the stages compute what the model does.

    The results of modules are compared, then outputs, buffers and the gradients of a weighted sum of all
    outputs. The model and its stages run the same kernels with the same random numbers, so they differ
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
) -> list[tuple[str, Any]]:
    """Run a model or its stages on copies of the inputs, and return the results in order, with their names.

    A result is a tensor's layout, digest and the norm to which errors relate, or the name of an operation.
    The model's state stays as it was.
    """
    run: list[tuple[str, Any]] = []
    is_meta = any(parameter.is_meta for parameter in model.parameters())
    device = torch.device("meta") if is_meta else example.tensors[0].device

    def note(module: nn.Module, _: Any, result: Any) -> None:
        if module in places:
            run.extend((f"the result of {places[module]}", _measure(t)) for t in tensors_in(result))

    with unchanged(model, device), torch.enable_grad():
        inputs = [t.detach().to(device, copy=True).requires_grad_(t.requires_grad) for t in example.tensors]
        with register_module_forward_hook(note):
            outputs = tensors_in(call(example.but(inputs)))
        run.extend((f"output {number}", _measure(tensor)) for number, tensor in enumerate(outputs))
        run.extend((f"buffer {name}", _measure(buffer)) for name, buffer in model.named_buffers())
        trained = [output for output in outputs if output.requires_grad]
        recorded = [name for output in trained for name in _operations_of(output)]
        run.extend(("an operation that autograd records", name) for name in recorded)
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        gradients: Sequence[Tensor | None] = [None] * len(parameters)
        if trained and parameters:
            weights = [
                torch.linspace(-1, 2, y.numel(), dtype=y.dtype, device=y.device).view_as(y) for y in trained
            ]
            gradients = torch.autograd.grad(trained, [*parameters.values()], weights, allow_unused=True)
    figures = [None if gradient is None else _measure(gradient) for gradient in gradients]
    # A gradient that is zero but for rounding, such as that of a bias before a norm, has the others' errors.
    largest = max((norm for _, _, norm in filter(None, figures)), default=0.0)
    named = zip(parameters, figures, strict=True)
    run.extend((f"the gradient of {name}", figure and (*figure[:2], largest)) for name, figure in named)
    return run


def _operations_of(tensor: Tensor) -> Iterator[str]:
    """Yield the names of the operations that autograd recorded for a tensor."""
    seen: set[Any] = {None}
    nodes: list[Any] = [tensor.grad_fn]
    while nodes:
        node = nodes.pop()
        if node not in seen:
            seen.add(node)
            yield node.name()
            nodes.extend(follower for follower, _ in node.next_functions)


def _measure(tensor: Tensor) -> tuple[Description, list[float], float]:
    values = [0.0, 0.0] if tensor.is_meta else digest(tensor.detach().to_dense()).tolist()
    return Description.of(tensor), values, values[1]


def _difference(expected: Any, actual: Any) -> str:
    """Return how two results of the same name differ, or nothing."""
    one, two = (x[0] if isinstance(x, tuple) else x for x in (expected, actual))
    if one != two:
        return f"is {one} in the model and {two} in the stages"
    if not isinstance(expected, tuple):
        return ""
    _, values, unit = expected
    gap = max(abs(a - b) for a, b in zip(values, actual[1], strict=True))
    is_same = gap <= tolerance(one.dtype) * unit
    return "" if is_same else f"is off by {gap / (values[1] or math.inf):.1e} of its norm"
