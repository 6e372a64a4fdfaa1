"""Transposed convolutions that run as a plan says: the backward data pass of a convolution computes them."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mucudnn.torch.operators.derivatives import convolve
from mucudnn.torch.operators.formats import channels_last
from mucudnn.torch.operators.operands import autocast
from mucudnn.torch.operators.options import Options
from mucudnn.torch.operators.passes import can_divide, is_transformed

Operands = tuple[Tensor, Tensor, Tensor | None]


class _Transposed:
    """A base class in front of PyTorch's module: its kernels run as the module's plan says."""

    _mucudnn_planned: Any = None  # the ConversionSettings, which have a plan

    def forward(self: Any, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """Return what PyTorch's module returns."""
        chosen = self._mucudnn_planned
        operands = None if chosen is None else _operands(self, input)
        if operands is not None:
            more = self._output_padding(
                input, output_size, self.stride, self.padding, self.kernel_size, input.dim() - 2,
                self.dilation,
            )  # fmt: skip
            if all(extra < stride for extra, stride in zip(more, self.stride, strict=True)):
                return _run(self, operands, more, chosen)
        # `super()` would fail where another thread restores the module meanwhile.
        return _RUN_STOCK[len(self.kernel_size)](self, input, output_size)


class ConvTranspose1d(_Transposed, nn.ConvTranspose1d):
    """`torch.nn.ConvTranspose1d`, with planned kernels."""


class ConvTranspose2d(_Transposed, nn.ConvTranspose2d):
    """`torch.nn.ConvTranspose2d`, with planned kernels."""


class ConvTranspose3d(_Transposed, nn.ConvTranspose3d):
    """`torch.nn.ConvTranspose3d`, with planned kernels."""


_PLANNED = {
    nn.ConvTranspose1d: ConvTranspose1d,
    nn.ConvTranspose2d: ConvTranspose2d,
    nn.ConvTranspose3d: ConvTranspose3d,
}
_STOCK = {planned: stock for stock, planned in _PLANNED.items()}
_RUN_STOCK: dict[int, Any] = {dims: stock.forward for dims, stock in enumerate(_PLANNED, 1)}
# The `__module__` of a converted module itself; pickles need that of its class. `torch.fx` takes a module of
# torch.nn for a leaf, so a traced model still runs the module, under the name that it has in other models.
MODULE_OF_LEAVES = "torch.nn"


def follow_plan(module: Any, chosen: Any) -> None:
    """Make a transposed convolution run as the settings of a converted module say; other modules stay."""
    if type(module) in _PLANNED or isinstance(module, _Transposed):
        module.__class__ = _PLANNED.get(type(module), type(module))
        module.__module__ = MODULE_OF_LEAVES
        module._mucudnn_planned = chosen


def restore(module: Any) -> None:
    """Undo `follow_plan`."""
    if isinstance(module, _Transposed):
        module.__class__ = _STOCK.get(type(module), type(module))
        for name in ("_mucudnn_planned", "__module__"):
            module.__dict__.pop(name, None)


def _operands(module: Any, input: Any) -> Operands | None:
    """Return the input, the weight and the bias in the types that autocast wants.

    Return None for a call that mucudnn's operators cannot run, or that PyTorch refuses: its own operator for
    the backward data pass would take wrong shapes and types. Compilers and transforms get PyTorch's own too.
    """
    if torch.compiler.is_compiling() or torch.jit.is_tracing() or is_transformed():
        return None
    w = module.weight
    if not can_divide(input, w) or input.dim() != w.dim() or input.shape[1] != w.shape[0]:
        return None
    x, w, bias = autocast(input, w, module.bias)
    is_one_type = x.dtype == w.dtype and (bias is None or bias.dtype == x.dtype)
    return (x, w, bias) if is_one_type and x.device == w.device else None


def _run(module: Any, operands: Operands, more: Sequence[int], chosen: Any) -> Tensor:
    """Run the operator. `more` is the output padding of each spatial axis, `chosen` the module's settings."""
    x, w, bias = operands
    sizes = tuple(module.stride), tuple(module.padding), tuple(module.dilation)
    spatial = (
        (n - 1) * s - 2 * p + d * (k - 1) + 1 + extra
        for n, k, s, p, d, extra in zip(x.shape[2:], w.shape[2:], *sizes, more, strict=True)
    )
    # PyTorch's own transposed convolution has one memory format for all its tensors, as traces have.
    is_last = x.dim() > 3 and "y" in channels_last(x, w, None, *sizes, module.groups, exact=False)
    options = Options(
        *sizes, module.groups, "xwy" if is_last else "", chosen.workspace, chosen.handle, fallback=True
    )
    shape = (x.shape[0], w.shape[1] * module.groups, *spatial)
    y = convolve("backward_data", x, w, shape, options)
    return y if bias is None else y.add_(bias.view(1, -1, *(1,) * (y.dim() - 2)))
