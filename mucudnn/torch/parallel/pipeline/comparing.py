"""The comparison of a model's stages with the model, because a record does not hold all Python code."""

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.digests import digest, tolerance
from mucudnn.torch.parallel.pipeline.arguments import Arguments, describe
from mucudnn.torch.parallel.pipeline.program import Part, SplitStage
from mucudnn.torch.parallel.pipeline.stages import unchanged
from mucudnn.torch.tracing.saved import tensors_in


def check_stages(model: nn.Module, stages: Sequence[SplitStage], example: Arguments) -> None:
    """Raise UsageError, which names the first difference, unless the stages compute what the model does.

    The results of modules are compared, then outputs, buffers and the gradients of a weighted sum of all
    outputs. The model and its stages run the same kernels with the same random numbers, so they differ
    at most in the order of sums, and half of the digits have to be equal. Both run once forward and backward,
    one after another. A model on the meta device has no values: layouts are compared, and which modules run.
    """
    expected = _run(model, [model], stages, example)
    actual = _run(model, stages, stages, example)
    before = "the inputs"
    for one, two in zip_longest(expected, actual, fillvalue=_Result("nothing", "")):
        gap = max(abs(a - b) for a, b in zip(one.values, two.values, strict=True))
        if (one.name, one.layout) != (two.name, two.layout):
            difference = f"is {one.layout} in the model and {two.name} {two.layout} in the stages"
        elif gap > one.tolerance:
            difference = f"is off by {gap / (one.values[1] or math.inf):.1e} of its norm"
        else:
            before = one.name
            continue
        raise UsageError(
            f"the stages would not compute what {type(model).__name__} does. The first difference, behind "
            f"{before}: {one.name} {difference}. A stage repeats operations on tensors, but not all that "
            "Python code may ask or change, so cut the model by hand"
        )


class _Result(NamedTuple):
    """A tensor of a run, or a gradient that is missing."""

    name: str
    layout: str
    values: Sequence[float] = (0.0, 0.0)
    tolerance: float = 0.0


def _describe(name: str, tensor: Tensor | None) -> _Result:
    if tensor is None or tensor.is_meta:
        return _Result(name, "missing" if tensor is None else describe(tensor))
    values = digest(tensor.detach().to_dense()).tolist()
    return _Result(name, describe(tensor), values, tolerance(tensor.dtype) * values[1])


def _run(
    model: nn.Module, modules: Sequence[nn.Module], stages: Sequence[SplitStage], example: Arguments
) -> list[_Result]:
    """Run modules in a row on copies of the inputs, and return the results in order.

    The model's state stays as it was.
    """
    results: list[_Result] = []
    places = {
        stage.get_submodule(operation.name): f"{operation.name} in stage {number}"
        for number, stage in enumerate(stages)
        for operation in stage.split_operations
        if isinstance(operation.call[0], Part)
    }
    is_meta = any(parameter.is_meta for parameter in model.parameters())
    device = torch.device("meta") if is_meta else example.tensors[0].device

    def note(module: nn.Module, _: object, result: object) -> None:
        if module in places:
            results.extend(_describe(f"the result of {places[module]}", t) for t in tensors_in(result))

    with unchanged(model, device), torch.enable_grad():
        arguments = example.map(lambda t: t.detach().to(device, copy=True).requires_grad_(t.requires_grad))
        with register_module_forward_hook(note):
            for module in modules[:-1]:
                arguments = Arguments.of(arguments.call(module), "the output of a stage")
            outputs = tensors_in(arguments.call(modules[-1]))
        results += [_describe(f"output {number}", tensor) for number, tensor in enumerate(outputs)]
        results += [_describe(f"buffer {name}", buffer) for name, buffer in model.named_buffers()]
        trained = [output for output in outputs if output.requires_grad]
        weights = [
            torch.linspace(-1, 2, y.numel(), dtype=y.dtype, device=y.device).view_as(y) for y in trained
        ]
        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        if trained and parameters:
            gradients = torch.autograd.grad(trained, [*parameters.values()], weights, allow_unused=True)
            named = zip(parameters, gradients, strict=True)
            found = [_describe(f"the gradient of {name}", gradient) for name, gradient in named]
            # A gradient that is zero but for rounding, as of a bias before a norm, has the others' errors.
            largest = max(result.tolerance for result in found)
            results += [result._replace(tolerance=largest) for result in found]
    return results
