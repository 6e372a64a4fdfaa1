"""Conversions between the shapes of arrays and a problem, with the checks of a caller's arguments."""

import operator
from collections.abc import Sequence
from typing import Any

from mucudnn._native import Problem
from mucudnn.errors import ArgumentTypeError, UsageError, raised_here, shown

Shape = tuple[int, ...]
Sizes = int | Sequence[int]
MOST = 2**31 - 1  # cuDNN takes sizes as int


def problem_of(
    data_type: str,
    layout: str,
    x: Shape,
    w: Shape,
    stride: Sizes,
    padding: Sizes,
    dilation: Sizes,
    groups: int,
    math: str = "default",
) -> Problem:
    """Return the problem that convolves an input of shape `x` with a filter of shape `w`.

    A problem has at least two spatial dimensions: a single one becomes the width, with a height of 1.
    Raises UsageError for arguments that do not describe a convolution, and ArgumentTypeError for a size that
    is not an integer; both name the argument.
    """
    x, w, layout = exact_shape("x", x), exact_shape("w", w), exact_layout(layout)
    dims = len(x) - 2
    if dims not in (1, 2, 3) or len(w) != len(x):
        raise UsageError(
            f"x has {len(x)} axes and w {len(w)}: give both the same number, 3 to 5, "
            f"in the order of layout {layout!r}"
        )
    batch, channels, *input_ = _channels_second(x, layout)
    filters, filter_channels, *kernel = _channels_second(w, layout)
    flat = (1,) if dims == 1 else ()
    groups = exact_size("groups", groups)
    if filter_channels * groups != channels:
        raise UsageError(
            f"x has {channels} channels, but w takes {filter_channels} in each of {groups} groups: "
            "x must have the channels of w times groups"
        )
    try:
        return Problem(
            mini_batch=batch,
            in_channels=channels,
            out_channels=filters,
            input=(*flat, *input_),
            kernel=(*flat, *kernel),
            stride=(*flat, *_read_spatial("stride", stride, dims)),
            padding=(*(0 for _ in flat), *_read_spatial("padding", padding, dims)),
            dilation=(*flat, *_read_spatial("dilation", dilation, dims)),
            groups=groups,
            data_type=data_type,
            layout=layout,
            math=math,
        )
    except raised_here(ValueError) as error:
        raise UsageError(str(error)) from None


def shapes_of(problem: Problem, dims: int) -> dict[str, Shape]:
    """Return the shapes of x, w and y in the problem's layout, with `dims` spatial dimensions."""
    axes = slice(problem.dims - dims, None)
    whole = {
        "x": (problem.mini_batch, problem.in_channels, *problem.input[axes]),
        "w": (problem.out_channels, problem.in_channels // problem.groups, *problem.kernel[axes]),
        "y": (problem.mini_batch, problem.out_channels, *problem.output[axes]),
    }
    return {
        name: shape if problem.layouts[name] == "nchw" else (shape[0], *shape[2:], shape[1])
        for name, shape in whole.items()
    }


def exact_layout(layout: object) -> str:
    """Return the layout as a str. Raises ArgumentTypeError, UsageError."""
    if isinstance(layout, str) and layout in ("nchw", "nhwc"):
        return str.__str__(layout)  # a str even if the caller gave a member of an Enum
    error = UsageError if isinstance(layout, str) else ArgumentTypeError
    raise error(f"layout is {shown(layout)}: it must be 'nchw' or 'nhwc'")


def exact_shape(name: str, shape: object) -> Shape:
    """Return a shape as a tuple of ints. Raises ArgumentTypeError, UsageError."""
    sizes = _list_elements(shape)
    if sizes is None:
        raise ArgumentTypeError(f"the shape of {name} is {shown(shape)}, not a size for each axis")
    return tuple(exact_size(f"the shape of {name}", size) for size in sizes)


def exact_sizes(name: str, value: object) -> int | Shape:
    """Return a size as an int, or several as a tuple of ints. Raises ArgumentTypeError, UsageError."""
    sizes = _list_elements(value)
    return exact_size(name, value) if sizes is None else tuple(exact_size(name, size) for size in sizes)


def exact_size(name: str, value: object) -> int:
    """Return a whole number as an int.

    Raises ArgumentTypeError for any other value, even a bool; UsageError for a size beyond 32 bits.
    """
    size = whole_number(value)
    if size is None:
        raise ArgumentTypeError(f"{name} is {shown(value)}, not a whole number")
    if abs(size) > MOST:
        raise UsageError(f"{name} is {shown(size)}: sizes go up to {MOST}")
    return size


def whole_number(value: object) -> int | None:
    """Return a whole number of any type as an int; None for any other value, even a bool."""
    if type(value) is int:
        return value
    plain = scalar(value)
    try:
        return None if isinstance(plain, bool) else operator.index(plain)
    except Exception:  # not a whole number
        return None


def scalar(value: Any) -> Any:
    """Return the number in an array without axes as a Python number, or None if it is not a number.

    Return any value that is not such an array unchanged.
    """
    try:
        if value.ndim != 0:
            return value
        return value.item() if getattr(value.dtype, "kind", "f") in "biufc" else None
    except Exception:  # not an array, or its library refuses to return the number
        return value


def _list_elements(value: Any) -> Sequence[object] | None:
    """Return the elements of a sequence or of an array with axes; None for any other value."""
    if isinstance(value, Sequence):
        return None if isinstance(value, str | bytes | bytearray | memoryview) else value
    try:
        listed = value.tolist()
    except Exception:  # not an array, or its values are not in the CPU's memory
        return None
    return listed if isinstance(listed, list) else None


def _channels_second(shape: Shape, layout: str) -> Shape:
    """Return the shape in the order of nchw: the channels directly after the samples."""
    return shape if layout == "nchw" else (shape[0], shape[-1], *shape[1:-1])


def _read_spatial(name: str, value: Sizes, dims: int) -> Shape:
    sizes = exact_sizes(name, value)
    if isinstance(sizes, int):
        return (sizes,) * dims
    if len(sizes) != dims:
        raise UsageError(f"{name} has {len(sizes)} sizes, x has {dims} spatial axes")
    return sizes
