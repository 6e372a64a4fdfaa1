"""The three passes as operators of PyTorch, with their rules for autograd and for fake tensors.

Compilers can trace the operators because their arguments are tensors, numbers and text. A plan is passed as
its path, or as the handle by which this process knows it.
"""

from typing import Any

import torch
from torch import Tensor

from mucudnn.torch.operators import passes
from mucudnn.torch.operators.derivatives import gradients
from mucudnn.torch.operators.options import SCHEMA, Ints, Options
from mucudnn.torch.operators.passes import empty_result


def _fake_forward(x: Tensor, w: Tensor, bias: Tensor | None, *fields: Any) -> Tensor:
    options = Options(*fields)
    spatial = zip(x.shape[2:], w.shape[2:], options.stride, options.padding, options.dilation, strict=True)
    output = [(i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d in spatial]
    return empty_result((x.shape[0], w.shape[0], *output), x, "y" in options.channels_last)


def _fake_backward_data(dy: Tensor, w: Tensor, input_shape: Ints, *fields: Any) -> Tensor:
    return empty_result(input_shape, dy, "x" in Options(*fields).channels_last)


def _fake_backward_filter(x: Tensor, dy: Tensor, filter_shape: Ints, *fields: Any) -> Tensor:
    return empty_result(filter_shape, x, "w" in Options(*fields).channels_last)


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    first, second, _, *fields = inputs
    ctx.save_for_backward(first, second)
    ctx.options = Options(*fields)


def _gradients_of(pass_: str) -> Any:
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        grads = gradients(pass_, ctx.saved_tensors, g, ctx.needs_input_grad, ctx.options)
        return (*grads, *(None for _ in Options._fields))

    return backward


_library = torch.library.Library("mucudnn", "DEF")


def _operator(pass_: str, arguments: str, fake: Any) -> Any:
    """Define an operator like `torch.library.custom_op`, but without its checks, which take 20 µs a call."""

    def run(first: Tensor, second: Tensor, third: Any, *fields: Any) -> Tensor:
        return passes.run(pass_, first, second, third, Options(*fields))

    name = f"convolution_{pass_}"
    qualified = f"mucudnn::{name}"
    _library.define(f"{name}({arguments}, {SCHEMA}) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(qualified, fake, lib=_library)
    torch.library.register_autograd(qualified, _gradients_of(pass_), setup_context=_save, lib=_library)
    return getattr(torch.ops.mucudnn, name).default


forward = _operator("forward", "Tensor x, Tensor w, Tensor? bias", _fake_forward)
backward_data = _operator("backward_data", "Tensor dy, Tensor w, SymInt[] input_shape", _fake_backward_data)
backward_filter = _operator(
    "backward_filter", "Tensor x, Tensor dy, SymInt[] filter_shape", _fake_backward_filter
)
