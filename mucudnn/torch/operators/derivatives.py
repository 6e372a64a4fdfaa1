"""Derivatives of the three passes, to any order, in reverse and in forward mode, and their rule for vmap.

A pass computes one of the tensors x, w and y from the other two and is linear in both. Because a gradient has
the shape of its tensor, every derivative of a pass is again a pass.
"""

from collections.abc import Callable, Sequence
from functools import reduce
from operator import add
from typing import Any

import torch
from torch import Tensor

from mucudnn.arrays.dispatch import Prepared
from mucudnn.errors import NotDifferentiableError
from mucudnn.torch.operators import passes
from mucudnn.torch.operators.options import Ints, Options
from mucudnn.torch.private import Transform, active_transforms, is_profiled, is_transformed, uncompiled

# The roles of a pass's first and second tensor and of its result.
_ROLES = {"forward": ("x", "w", "y"), "backward_data": ("y", "w", "x"), "backward_filter": ("x", "y", "w")}
_PASS_TO = {roles[2]: pass_ for pass_, roles in _ROLES.items()}
# The axes of the convolution into which vmap's rule folds vmap's batch axis. A key names the tensors that
# have a batch axis. Its value gives, for each of them, the axis to fold into, and True if the groups of the
# convolution divide that axis. If all three have a batch axis, each member of the batch becomes a group.
_FOLDS: dict[frozenset[str], dict[str, tuple[int, bool]]] = {
    frozenset("xy"): {"x": (0, False), "y": (0, False)},  # the mini-batch
    frozenset("wy"): {"w": (0, True), "y": (1, True)},  # the filters
    frozenset("xw"): {"x": (1, True), "w": (1, False)},  # the input channels
    frozenset("xwy"): {"x": (1, False), "w": (0, False), "y": (1, False)},
}


def convolve(
    pass_: str, first: Tensor, second: Tensor, third: Any, options: Options, ready: Prepared | None = None
) -> Tensor:
    """Run a pass with derivatives for autograd and transforms.

    For the forward pass, `third` is the bias or None, and `ready` may be its division. For the other passes,
    `third` is the shape of the result. Raises NotDifferentiableError for a derivative under functionalize.
    """
    if passes.is_followed(first, second, third):
        run: Callable[..., Tensor] = _operator
        if is_transformed():
            run = _run_uncompiled if torch.compiler.is_compiling() else _run_transformed
        return run(pass_, first, second, third, *options)
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


def _run_transformed(pass_: str, *arguments: Any) -> Tensor:
    transforms = active_transforms()
    if Transform.Functionalize not in transforms:
        result: Tensor = Convolution.apply(pass_, *arguments)
        return result
    if transforms & {Transform.Grad, Transform.Jvp}:
        raise NotDifferentiableError(
            "mucudnn.torch has no derivatives together with torch.func.functionalize: "
            "leave it out, or use torch.nn.functional"
        )
    return _operator(pass_, *arguments)


# Compilers refuse an autograd.Function with its own vmap or jvp.
_run_uncompiled = uncompiled(
    _run_transformed,
    "mucudnn.torch runs uncompiled under torch.func and in forward mode: compile without fullgraph",
)


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


class Convolution(torch.autograd.Function):
    """A pass with rules for the transforms of `torch.func` and for forward mode, which operators lack."""

    @staticmethod
    def forward(pass_: str, first: Tensor, second: Tensor, third: Any, *options: Any) -> Tensor:
        """Run the operator."""
        return _operator(pass_, first, second, third, *options)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        """Save the pass, its two tensors and its options for the derivatives."""
        ctx.pass_, first, second, _, *options = inputs
        ctx.options, ctx.shape = Options(*options), tuple(output.shape)
        ctx.save_for_backward(first, second)
        ctx.save_for_forward(first, second)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, g: Tensor | None) -> tuple[Any, ...]:
        """Return a gradient for each argument of `forward`; None for those that have none."""
        grads: tuple[Tensor | None, ...] = (None, None, None)
        if g is not None:
            grads = gradients(ctx.pass_, ctx.saved_tensors, g, ctx.needs_input_grad[1:4], ctx.options)
        return (None, *grads, *(None for _ in Options._fields))

    @staticmethod
    def jvp(ctx: Any, _: None, first: Tensor | None, second: Tensor | None, third: Any, *__: None) -> Any:
        """Return the result's tangent for the tangents of the two tensors and the bias; None stands for 0."""
        saved_first, saved_second = ctx.saved_tensors
        shape = None if ctx.pass_ == "forward" else ctx.shape
        terms = []
        if first is not None:
            terms.append(convolve(ctx.pass_, first, saved_second, shape, ctx.options))
        if second is not None:
            terms.append(convolve(ctx.pass_, saved_first, second, shape, ctx.options))
        if third is not None:
            terms.append(third.reshape(-1, *(1,) * (len(ctx.shape) - 2)).expand(ctx.shape))
        return reduce(add, terms) if terms else None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], pass_: str, first: Tensor, second: Tensor, third: Any,
        *fields: Any,
    ) -> tuple[Tensor, int]:  # fmt: skip
        """Run one larger convolution for vmap's whole batch. Return its result, and the batch axis in it."""
        axes, options, size = in_dims[1:3], Options(*fields), info.batch_size
        if pass_ != "forward" or third is None or in_dims[1:4] == (in_dims[1], None, None):
            return _folded(pass_, first, second, third, axes, size, options)
        # Add the bias after the convolution, because the larger convolution takes only one bias, and the
        # members of the batch have their own biases or filters.
        y, axis = _folded(pass_, first, second, None, axes, size, options)
        y = y.movedim(axis, 0)
        bias = third.unsqueeze(0) if in_dims[3] is None else third.movedim(in_dims[3], 0)
        return y + bias.reshape(-1, 1, bias.shape[1], *(1,) * (y.dim() - 3)), 0


def _pass_to(result: str, tensors: dict[str, Tensor], shape: Ints, options: Options) -> Tensor:
    """Run the pass that computes the tensor in the role `result` ("x", "w" or "y"), of this shape."""
    pass_ = _PASS_TO[result]
    first, second, _ = _ROLES[pass_]
    third = None if pass_ == "forward" else tuple(shape)
    return convolve(pass_, tensors[first], tensors[second], third, options)


def _folded(
    pass_: str, first: Tensor, second: Tensor, third: Any, axes: Sequence[Any], size: int, options: Options
) -> tuple[Tensor, int]:
    """Run a pass with vmap's batch of `size` members folded into axes of its tensors (`_FOLDS`).

    `axes` gives the batch axis of each of the two tensors, or None for a tensor without the batch.
    Return the result, and the batch axis in it.
    """
    first_role, second_role, result = _ROLES[pass_]
    batched = [role for role, axis in zip((first_role, second_role), axes, strict=True) if axis is not None]
    if not batched:  # only the bias has the batch, and the caller adds it
        return convolve(pass_, first, second, third, options).unsqueeze(0), 0
    folds = _FOLDS[frozenset((*batched, result))]
    folded = []
    for role, tensor, axis in zip((first_role, second_role), (first, second), axes, strict=True):
        if axis is not None:
            to, grouped = folds[role]
            parts = tensor.movedim(axis, to).unflatten(to + 1, (options.groups if grouped else 1, -1))
            tensor = parts.transpose(to, to + 1).flatten(to, to + 2)  # (groups, batch, rest)
        folded.append(tensor)
    to, grouped = folds[result]
    if pass_ != "forward":
        third = tuple(length * size if axis == to else length for axis, length in enumerate(third))
    inner = options._replace(groups=options.groups * size) if len(folds) == 3 else options
    parts = convolve(pass_, folded[0], folded[1], third, inner)
    parts = parts.unflatten(to, (options.groups if grouped else 1, size, -1)).transpose(to, to + 1)
    return parts.flatten(to + 1, to + 2), to
