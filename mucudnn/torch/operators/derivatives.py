"""Derivatives of the three passes, to any order, in reverse mode.

A pass computes one of the tensors x, w and y from the other two and is linear in both. Because a gradient has
the shape of its tensor, every derivative of a pass is again a pass.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mucudnn.arrays.dispatch import Prepared
from mucudnn.torch.operators import passes
from mucudnn.torch.operators.options import Ints, Options
from mucudnn.torch.private import is_profiled, is_transformed

# The roles of a pass's first and second tensor and of its result.
_ROLES = {"forward": ("x", "w", "y"), "backward_data": ("y", "w", "x"), "backward_filter": ("x", "y", "w")}
_PASS_TO = {roles[2]: pass_ for pass_, roles in _ROLES.items()}


def convolve(
    pass_: str, first: Tensor, second: Tensor, third: Any, options: Options, ready: Prepared | None = None
) -> Tensor:
    """Run a pass with derivatives for autograd and transforms.

    For the forward pass, `third` is the bias or None, and `ready` may be its division. For the other passes,
    `third` is the shape of the result. Under a transform of `torch.func` and in forward mode, PyTorch's own
    operators run, which have rules for all transforms.
    """
    if is_transformed():
        passes.warn_if_not_kept(options.promise)
        return passes.run_stock(pass_, first, second, third, options)
    if passes.is_followed(first, second, third):
        return _operator(pass_, first, second, third, *options)
    if torch.is_grad_enabled() and (
        first.requires_grad or second.requires_grad or (isinstance(third, Tensor) and third.requires_grad)
    ):
        result: Tensor = MucudnnConvolution.apply(pass_, first, second, third, options, ready)
        return result
    if is_profiled():  # a profiler shows operators, with their shapes
        return _operator(pass_, first, second, third, *options)
    return passes.run(pass_, first, second, third, options, ready)


def _operator(pass_: str, *arguments: Any) -> Tensor:
    result: Tensor = getattr(torch.ops.mucudnn, f"convolution_{pass_}").default(*arguments)
    return result


def gradients(
    pass_: str, tensors: Sequence[Tensor], g: Tensor, needed: Sequence[bool], options: Options
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """Return the gradients of a pass's two tensors and of its bias; None for each that is not `needed`.

    `g` is the gradient of the pass's result. The gradients have the shapes of the tensors and of the bias.
    """
    first_role, second_role, result = _ROLES[pass_]
    first, second = tensors
    return (
        _pass_to(first_role, {second_role: second, result: g}, first.shape, options) if needed[0] else None,
        _pass_to(second_role, {first_role: first, result: g}, second.shape, options) if needed[1] else None,
        g.sum([0, *range(2, g.dim())]) if pass_ == "forward" and needed[2] else None,
    )


class MucudnnConvolution(torch.autograd.Function):
    """A pass with a rule for reverse mode only, which PyTorch calls faster than an operator.

    Profilers and autograd graphs show the name of this class.
    """

    @staticmethod
    def forward(
        ctx: Any, pass_: str, first: Tensor, second: Tensor, third: Any, options: Options, ready: Any
    ) -> Tensor:
        """Run the pass, and save its two tensors and its options for the gradients."""
        ctx.pass_, ctx.options = pass_, options
        ctx.save_for_backward(first, second)
        return passes.run(pass_, first, second, third, options, ready)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        """Return a gradient for each argument of `forward`; None for those that have none."""
        grads = gradients(ctx.pass_, ctx.saved_tensors, g, ctx.needs_input_grad[1:4], ctx.options)
        return (None, *grads, None, None)


def _pass_to(result: str, tensors: dict[str, Tensor], shape: Ints, options: Options) -> Tensor:
    """Run the pass that computes the tensor in the role `result` ("x", "w" or "y"), of this shape."""
    pass_ = _PASS_TO[result]
    first, second, _ = _ROLES[pass_]
    third = None if pass_ == "forward" else tuple(shape)
    return convolve(pass_, tensors[first], tensors[second], third, options)
