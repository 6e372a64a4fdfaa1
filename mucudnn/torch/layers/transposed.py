"""Transposed convolutions that follow a plan or keep a promise, as backward data passes of convolutions."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mucudnn.torch.layers.converted import Method
from mucudnn.torch.layers.functional import DividedInput, check_promise_of_divided
from mucudnn.torch.operators.derivatives import convolve
from mucudnn.torch.operators.formats import channels_last_results
from mucudnn.torch.operators.operands import autocast
from mucudnn.torch.operators.options import Options
from mucudnn.torch.operators.passes import can_divide
from mucudnn.torch.private import is_transformed

Operands = tuple[Tensor, Tensor, Tensor | None]


class TransposedForward(Method):
    """The method `forward` of PyTorch's module, whose kernels follow the module's settings."""

    def __call__(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Return what PyTorch's module returns."""
        module = self.module()
        settings = getattr(module, "_mucudnn", None)  # another thread may restore the module meanwhile
        operands = None if settings is None else _operands(module, input, settings)
        if operands is not None:
            output_padding = module._output_padding(
                input, output_size, module.stride, module.padding, module.kernel_size, input.dim() - 2,
                module.dilation,
            )  # fmt: skip
            if all(extra < stride for extra, stride in zip(output_padding, module.stride, strict=True)):
                return _run(module, operands, output_padding, settings)
        if settings is not None:
            if isinstance(input, DividedInput):
                check_promise_of_divided(settings.promise)
            settings.warn_if_not_kept(input)
        return type(module).forward(module, input, output_size)


TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


def _operands(module: Any, input: Any, settings: Any) -> Operands | None:
    """Return the input, the weight and the bias in the types that autocast casts to.

    Return None under transforms, under compilers unless there is a promise to keep, and for a call that
    mucudnn's operators cannot run or that PyTorch refuses, because its operator for the backward data pass
    would accept wrong shapes and types.
    """
    is_left_to_compiler = torch.compiler.is_compiling() and not settings.promise_text
    if is_left_to_compiler or torch.jit.is_tracing() or is_transformed():
        return None
    w = module.weight
    if not can_divide(input, w) or input.dim() != w.dim() or input.shape[1] != w.shape[0]:
        return None
    x, w, bias = autocast(input, w, module.bias)
    is_same_type = x.dtype == w.dtype and (bias is None or bias.dtype == x.dtype)
    return (x, w, bias) if is_same_type and x.device == w.device else None


def _run(module: Any, operands: Operands, output_padding: Sequence[int], settings: Any) -> Tensor:
    """Run the operator with the output padding of each spatial axis and the module's settings."""
    x, w, bias = operands
    sizes = tuple(module.stride), tuple(module.padding), tuple(module.dilation)
    spatial = (
        (n - 1) * s - 2 * p + d * (k - 1) + 1 + extra
        for n, k, s, p, d, extra in zip(x.shape[2:], w.shape[2:], *sizes, output_padding, strict=True)
    )
    # All tensors share a memory format, because they do in PyTorch's own operator and in traces.
    is_last = x.dim() > 3 and "y" in channels_last_results(x, w, None, *sizes, module.groups, exact=False)
    options = Options(
        *sizes,
        module.groups,
        "xwy" if is_last else "",
        settings.workspace,
        settings.handle,
        fallback=True,
        promise=settings.promise_text,
    )
    shape = (x.shape[0], w.shape[1] * module.groups, *spatial)
    y = convolve("backward_data", x, w, shape, options)
    return y if bias is None else y.add_(bias.view(1, -1, *(1,) * (y.dim() - 2)))
