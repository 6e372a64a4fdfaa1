"""The three passes as operators of PyTorch, with their rules for autograd and for fake tensors.

Compilers can trace the operators because their arguments are tensors, numbers and text. A plan is passed as
its path, or as the handle by which this process knows it.
"""

from typing import Any

import torch
from torch import Tensor

from mucudnn.problems.kernels import PASSES
from mucudnn.torch.operators import passes
from mucudnn.torch.operators.derivatives import gradients
from mucudnn.torch.operators.options import SCHEMA, TENSORS, Options, output_shape
from mucudnn.torch.operators.passes import empty_result


def _fake_of(pass_: str) -> Any:
    role = {"forward": "y", "backward_data": "x", "backward_filter": "w"}[pass_]

    def fake(first: Tensor, second: Tensor, third: Any, *fields: Any) -> Tensor:
        options, shape = Options(*fields), third
        if pass_ == "forward":
            sizes = options.stride, options.padding, options.dilation
            shape = output_shape(first.shape, second.shape, *sizes)
        return empty_result(shape, first, role in options.channels_last)

    return fake


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


def _operator(pass_: str) -> Any:
    """Define an operator like `torch.library.custom_op`, but without its checks, which take 20 µs a call."""

    def run(first: Tensor, second: Tensor, third: Any, *fields: Any) -> Tensor:
        return passes.run(pass_, first, second, third, Options(*fields))

    name = f"convolution_{pass_}"
    qualified = f"mucudnn::{name}"
    _library.define(f"{name}({TENSORS[pass_]}, {SCHEMA}) -> Tensor", tags=torch.Tag.pt2_compliant_tag)
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(qualified, _fake_of(pass_), lib=_library)
    torch.library.register_autograd(qualified, _gradients_of(pass_), setup_context=_save, lib=_library)
    return getattr(torch.ops.mucudnn, name).default


forward, backward_data, backward_filter = map(_operator, PASSES)
