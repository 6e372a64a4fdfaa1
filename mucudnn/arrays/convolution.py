"""The convolutions of arrays, divided so that each stays within a workspace limit.

`x` is the input, `w` the filter and `y` the output; there are one to three spatial dimensions. With layout
"nchw" their shapes are (N, C, *spatial), (K, C / groups, *kernel) and (N, K, *output). With "nhwc" the
channels come last in all three. The operation is the cross-correlation of cuDNN, PyTorch and JAX.

Arrays come from NumPy, PyTorch, or any library with DLPack or the CUDA array interface. Their data type is
f32, f64, f16 or bf16. They must be packed, of one type, and on one device. The result is an array of the
first array's library, or of NumPy if that library is not PyTorch or CuPy and lacks the array API.

For arrays in a GPU's memory, the work goes to the current stream of PyTorch or CuPy. Arrays of another
library name the stream to use in their CUDA array interface.
"""

import sys
from numbers import Real
from typing import Any, TypeVar

from mucudnn.arrays import views
from mucudnn.arrays.call import PassCall, PlanOrPath, by_role
from mucudnn.arrays.dispatch import prepared
from mucudnn.arrays.views import View
from mucudnn.errors import ArgumentTypeError, UsageError, shown
from mucudnn.problems.shapes import Shape, Sizes, exact_shape, scalar
from mucudnn.promises import STRICT, promise_of, promise_of_process

Array = TypeVar("Array")
# cuDNN takes alpha and beta in f32 for data in f32, f16 and bf16.
_LARGEST = {"f32": 3.4028234663852886e38, "f64": sys.float_info.max}


def convolution_forward(
    x: Array,
    w: Array,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    layout: str = "nchw",
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Array | None = None,
    workspace: int | str | None = None,
    plan: PlanOrPath | None = None,
    numerics: str | None = None,
    batch_invariant: bool | None = None,
    choice: str | None = None,
) -> Array:
    """Compute y = alpha · (x ∗ w) + beta · y, of shape (N, K, *output).

    `stride`, `padding` and `dilation` are one number, or one for each spatial dimension; a `dilation` of 1
    leaves no gaps. Sizes are whole numbers of any type but bool, `alpha` and `beta` finite real numbers. The
    result is written to `out`, whose old values are not read if beta is 0. Without `out` the result is a new
    array, and beta must be 0. `workspace` is the most scratch memory that the call may use, in bytes or as
    text ("64MiB", "none"). The default is MUCUDNN_WORKSPACE_LIMIT, or 64 MiB if that is not set. With
    `numerics` "strict" each result is a sum over its own window: neither FFT nor Winograd nor TF32 runs. The
    default is MUCUDNN_NUMERICS, or "fast".

    The first call for a shape measures the algorithms that fit, which takes seconds; the cache keeps the
    measurements. A `plan` (a Plan, or the path of one, which is read once) makes measuring unnecessary: the
    call runs the plan's choice, or with `workspace` the plan's fastest configuration within it. Several
    threads may call at once, and so may a child of fork(). On the CPU each call runs on MUCUDNN_THREADS
    threads, 1 by default, whatever PyTorch's own number of threads is.

    Raises UsageError (a ValueError) for arguments that do not describe a convolution or do not fit the plan,
    and ArgumentTypeError (a TypeError) for arguments of a wrong type. Raises MixedDevicesError,
    NotDifferentiableError, NothingFitsError and NoEngineError (RuntimeErrors). All are MucudnnErrors.

    Source: cudnnConvolutionForward; the division follows Oyama et al., μ-cuDNN, 2018.
    """
    sizes, factors = (stride, padding, dilation, groups, workspace), (alpha, beta)
    promise = numerics, batch_invariant, choice
    return _convolve("forward", x, w, None, sizes, layout, factors, out, plan, promise)


def convolution_backward_data(
    dy: Array,
    w: Array,
    input_shape: Shape,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    layout: str = "nchw",
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Array | None = None,
    workspace: int | str | None = None,
    plan: PlanOrPath | None = None,
    numerics: str | None = None,
    batch_invariant: bool | None = None,
    choice: str | None = None,
) -> Array:
    """Compute dx = alpha · (gradient of the input) + beta · dx, of `input_shape`.

    `dy`, the gradient of the output, has the output's shape. All other arguments, and the errors, are those
    of `convolution_forward`.

    Source: cudnnConvolutionBackwardData.
    """
    sizes, factors = (stride, padding, dilation, groups, workspace), (alpha, beta)
    promise = numerics, batch_invariant, choice
    return _convolve("backward_data", dy, w, input_shape, sizes, layout, factors, out, plan, promise)


def convolution_backward_filter(
    x: Array,
    dy: Array,
    filter_shape: Shape,
    *,
    stride: Sizes = 1,
    padding: Sizes = 0,
    dilation: Sizes = 1,
    groups: int = 1,
    layout: str = "nchw",
    alpha: float = 1.0,
    beta: float = 0.0,
    out: Array | None = None,
    workspace: int | str | None = None,
    plan: PlanOrPath | None = None,
    numerics: str | None = None,
    batch_invariant: bool | None = None,
    choice: str | None = None,
) -> Array:
    """Compute dw = alpha · (gradient of the filter) + beta · dw, of `filter_shape`.

    `dy`, the gradient of the output, has the output's shape. All other arguments, and the errors, are those
    of `convolution_forward`.

    The gradients of micro-batches are summed: in bf16, if there are more than four, in fp32, in memory that
    counts as workspace. In f16 the mini-batch is not divided, because a part of the sum may exceed 65504, the
    largest f16, although the whole sum does not.

    Source: cudnnConvolutionBackwardFilter.
    """
    sizes, factors = (stride, padding, dilation, groups, workspace), (alpha, beta)
    promise = numerics, batch_invariant, choice
    return _convolve("backward_filter", x, dy, filter_shape, sizes, layout, factors, out, plan, promise)


def _convolve(
    pass_: str, first: Array, second: Any, shape: Shape | None, sizes: tuple[Any, Any, Any, Any, Any],
    layout: str, factors: tuple[float, float], out: Array | None, plan: PlanOrPath | None,
    promise: tuple[Any, ...],
) -> Array:  # fmt: skip
    """Run a pass on its two arrays. `shape` is that of a gradient; None in the forward pass."""
    name, other_name, role = _NAMES[pass_]
    view, other = views.read(first, name), views.read(second, other_name)
    views.check_same(name, view, other_name, other)
    alpha, beta = _check_factor("alpha", factors[0], view), _check_factor("beta", factors[1], view)
    if shape is not None and not (type(shape) is tuple and {*map(type, shape)} == {int}):
        shape = exact_shape(role, shape)
    promised = promise_of_process() if promise == (None, None, None) else promise_of(*promise)
    shapes: tuple[Any, Any, Any] = by_role(pass_, view.shape, other.shape, shape)
    call = PassCall(
        pass_, view.device, view.data_type, layout, *shapes, *sizes,
        STRICT if promised.is_strict else "default", None, promised,
    )  # fmt: skip
    ready = prepared(call, plan, stream=view.stream)
    target = out
    if target is None:
        if beta != 0:
            raise UsageError(f"beta is {beta}, and there is no out= to apply it to: give out=, or beta=0")
        target = views.empty(first, view.data_type, ready.shapes[role])
    written = views.read(target, "out")
    if out is not None:
        _check_output(written, view, other, ready.shapes[role])
    ready.run(*by_role(pass_, view.address, other.address, written.address), alpha, beta, view.stream, first)
    if out is None:
        made: Array = views.convert_result(target, first)
        return made
    views.note_written(out)
    return out


# The names of a pass's two arrays, and the role of its result.
_NAMES = {"forward": ("x", "w", "y"), "backward_data": ("dy", "w", "x"), "backward_filter": ("x", "dy", "w")}


def _check_factor(name: str, value: float, view: View) -> float:
    """Return alpha or beta as a float. Raises ArgumentTypeError, UsageError."""
    if type(value) is float and -1e38 < value < 1e38:  # nearly always
        return value
    if type(value) is not float:
        plain = scalar(value)
        if isinstance(plain, bool) or not isinstance(plain, Real):
            raise ArgumentTypeError(f"{name} is {shown(value)}, not a real number")
        try:
            value = float(plain)
        except OverflowError:
            raise UsageError(f"{name} is {shown(value)}: it must be finite in f64") from None
    scale = "f64" if view.data_type == "f64" else "f32"
    if not abs(value) <= _LARGEST[scale]:  # not `>`, which is False for NaN
        raise UsageError(f"{name} is {value}: it must be finite in {scale}")
    return value


def _check_output(target: View, view: View, other: View, shape: Shape) -> None:
    """Raise an error unless the result of this shape can be written to the caller's array."""
    views.check_same("the inputs", view, "out", target)
    if tuple(target.shape) != shape:
        raise UsageError(f"out has the shape {tuple(target.shape)}, the result has {shape}")
    if not target.writable:
        raise UsageError("out is read-only: give an array that can be written")
    if views.overlap(target, view) or views.overlap(target, other):
        raise UsageError("out shares memory with an input: give an array of its own")
