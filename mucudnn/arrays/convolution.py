"""The convolutions of arrays, divided so that each stays within a workspace limit.

`x` is the input, `w` the filter and `y` the output. With layout "nchw" their shapes are (N, C, *spatial),
(K, C / groups, *kernel) and (N, K, *output), with "nhwc" the channels come last in all three; there are one
to three spatial dimensions. The operation is the cross-correlation of cuDNN, PyTorch and JAX. Arrays are
of f32, f64, f16 or bf16, packed, all of one type and on one device: of NumPy, PyTorch, or anything that
speaks DLPack or the CUDA array interface; where the library is not known, the result is of the library
of the first array if it has the array API, and of NumPy otherwise. The work of arrays in a GPU's memory is
put on the current stream of their library (of PyTorch and CuPy; else on that which the array names).
"""

import sys
from numbers import Real
from typing import Any, TypeVar

from mucudnn.arrays import views as arrays
from mucudnn.arrays.dispatch import Call, PlanOrPath, prepared
from mucudnn.arrays.views import View
from mucudnn.errors import ArgumentTypeError, UsageError, shown
from mucudnn.problems.shapes import Shape, Sizes, exact_shape, scalar

Array = TypeVar("Array")
# Factors are of f32 for data of f32, f16 and bf16.
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
) -> Array:
    """Compute y = alpha · (x ∗ w) + beta · y, of shape (N, K, *output).

    `stride`, `padding` and `dilation` are one number, or one for each spatial dimension; `dilation` counts
    from 1 (none). Without `out` a new array is made, and beta must be 0; with beta 0 what `out` held is
    not read. Sizes are whole numbers of any type but bool, `alpha` and `beta` finite real numbers.
    `workspace` is the most scratch memory that the call may use, in bytes or as text ("64MiB", "none");
    without it MUCUDNN_WORKSPACE_LIMIT holds, 64 MiB by default.

    The first call for a shape measures the algorithms that fit, which takes seconds and is kept in the
    cache; a `plan` (a Plan, or the path of one, which is read once) spares that, and names exactly what
    runs; given both, the plan's fastest choice within `workspace` is taken. Safe to call from several
    threads, and in a child of fork(); on the CPU each call runs on MUCUDNN_THREADS threads, 1 by default,
    also for tensors.

    Raises UsageError (a ValueError) for arguments that make no convolution, among them a plan for other
    shapes; ArgumentTypeError (a TypeError); MixedDevicesError, NotDifferentiableError, NothingFitsError,
    NoEngineError (RuntimeErrors); all are MucudnnErrors.

    Source: cudnnConvolutionForward; the division follows Oyama et al., μ-cuDNN, 2018.
    """
    vx, vw = arrays.read(x, "x"), arrays.read(w, "w")
    arrays.check_same("x", vx, "w", vw)
    alpha, beta = _factor("alpha", alpha, vx), _factor("beta", beta, vx)
    call = Call(
        "forward", vx.device, vx.data_type, layout, vx.shape, vw.shape, None,
        stride, padding, dilation, groups, workspace,
    )  # fmt: skip
    ready = prepared(call, plan, stream=vx.stream)
    result, vy = _output(out, x, vx, vw, ready.shapes["y"], beta)
    ready.run(vx.address, vw.address, vy.address, alpha, beta, vx.stream, x)
    return _returned(result, out, x)


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
) -> Array:
    """Compute dx = alpha · (the input's gradient, for dy the output's) + beta · dx, of `input_shape`.

    `dy` has the shape of the forward output. Everything else is as in `convolution_forward`.

    Source: cudnnConvolutionBackwardData.
    """
    vdy, vw = arrays.read(dy, "dy"), arrays.read(w, "w")
    arrays.check_same("dy", vdy, "w", vw)
    alpha, beta = _factor("alpha", alpha, vdy), _factor("beta", beta, vdy)
    input_shape = _shape("x", input_shape)
    call = Call(
        "backward_data", vdy.device, vdy.data_type, layout, input_shape, vw.shape, vdy.shape,
        stride, padding, dilation, groups, workspace,
    )  # fmt: skip
    ready = prepared(call, plan, stream=vdy.stream)
    result, vdx = _output(out, dy, vdy, vw, ready.shapes["x"], beta)
    ready.run(vdx.address, vw.address, vdy.address, alpha, beta, vdy.stream, dy)
    return _returned(result, out, dy)


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
) -> Array:
    """Compute dw = alpha · (the filter's gradient, for dy the output's) + beta · dw, of `filter_shape`.

    `dy` has the shape of the forward output. Everything else is as in `convolution_forward`. Micro-batches
    are summed; in bf16 more than four of them are summed in fp32, which counts as workspace. In f16 the
    mini-batch is not divided: a part of the sum may exceed 65504, the end of f16, where the whole does not.

    Source: cudnnConvolutionBackwardFilter.
    """
    vx, vdy = arrays.read(x, "x"), arrays.read(dy, "dy")
    arrays.check_same("x", vx, "dy", vdy)
    alpha, beta = _factor("alpha", alpha, vx), _factor("beta", beta, vx)
    filter_shape = _shape("w", filter_shape)
    call = Call(
        "backward_filter", vx.device, vx.data_type, layout, vx.shape, filter_shape, vdy.shape,
        stride, padding, dilation, groups, workspace,
    )  # fmt: skip
    ready = prepared(call, plan, stream=vx.stream)
    result, vdw = _output(out, x, vx, vdy, ready.shapes["w"], beta)
    ready.run(vx.address, vdw.address, vdy.address, alpha, beta, vx.stream, x)
    return _returned(result, out, x)


def _factor(name: str, value: float, view: View) -> float:
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
    if not abs(value) <= _LARGEST[scale]:  # or it is not even a number
        raise UsageError(f"{name} is {value}: it must be finite in {scale}")
    return value


def _shape(name: str, shape: Shape) -> Shape:
    """Return a shape as a tuple of ints, among which no 1.0 is found for 1. Raises as `exact_shape`."""
    if type(shape) is tuple:
        for size in shape:
            if type(size) is not int:
                break
        else:
            return shape
    return exact_shape(name, shape)


def _output(out: Any, like: Any, view: View, other: View, shape: Shape, beta: float) -> tuple[Any, View]:
    """The array to write, and where it lies."""
    if out is None:
        if beta != 0:
            raise UsageError(f"beta is {beta}, and there is no out= that it could be applied to")
        result = arrays.empty(like, view.data_type, shape)
        return result, arrays.read(result, "out")
    target = arrays.read(out, "out")
    arrays.check_same("the inputs", view, "out", target)
    if tuple(target.shape) != shape:
        raise UsageError(f"out has the shape {tuple(target.shape)}, the result {shape}")
    if not target.writable:
        raise UsageError("out is read-only")
    if arrays.overlap(target, view) or arrays.overlap(target, other):
        raise UsageError("out shares memory with an input")
    return out, target


def _returned(result: Any, out: Array | None, like: Array) -> Array:
    if out is not None:
        arrays.written(out)
        return out
    made: Array = arrays.returned(result, like)
    return made
