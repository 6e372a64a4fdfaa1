"""From the shapes of arrays to a problem, and back."""

import operator
from collections.abc import Sequence
from typing import Any

from mucudnn._native import Problem
from mucudnn.errors import ArgumentTypeError, UsageError, shown

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
    """The problem of an input x and a filter w; one spatial dimension becomes a height of 1 and a width.

    Raises UsageError, naming the argument; ArgumentTypeError where a size is no integer.
    """
    x, w, layout = exact_shape("x", x), exact_shape("w", w), exact_layout(layout)
    dims = len(x) - 2
    if dims not in (1, 2, 3) or len(w) != len(x):
        raise UsageError(
            f"x has {len(x)} axes and w {len(w)}: both need 2 and 1, 2 or 3 spatial ones, "
            f"in the order of layout {layout!r}"
        )
    (batch, channels, *input_), (filters, filter_channels, *kernel) = _first(x, layout), _first(w, layout)
    flat = (1,) if dims == 1 else ()
    groups = exact_size("groups", groups)
    if filter_channels * groups != channels:
        raise UsageError(
            f"x has {channels} channels, w takes {filter_channels} for each of {groups} groups: "
            "the channels of x must be those of w times groups"
        )
    try:
        return Problem(
            mini_batch=batch,
            in_channels=channels,
            out_channels=filters,
            input=(*flat, *input_),
            kernel=(*flat, *kernel),
            stride=(*flat, *_spatial("stride", stride, dims)),
            padding=(*(0 for _ in flat), *_spatial("padding", padding, dims)),
            dilation=(*flat, *_spatial("dilation", dilation, dims)),
            groups=groups,
            data_type=data_type,
            layout=layout,
            math=math,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None


def shapes_of(problem: Problem, dims: int) -> dict[str, Shape]:
    """The shapes of x, w and y in the problem's layout, with `dims` spatial dimensions."""
    axes = slice(problem.dims - dims, None)
    whole = {
        "x": (problem.mini_batch, problem.in_channels, *problem.input[axes]),
        "w": (problem.out_channels, problem.in_channels // problem.groups, *problem.kernel[axes]),
        "y": (problem.mini_batch, problem.out_channels, *problem.output[axes]),
    }
    if problem.layout == "nchw":
        return whole
    return {name: (shape[0], *shape[2:], shape[1]) for name, shape in whole.items()}


def exact_layout(layout: object) -> str:
    """Return the layout as a str. Raises ArgumentTypeError, UsageError."""
    if isinstance(layout, str) and layout in ("nchw", "nhwc"):
        return str.__str__(layout)  # of an Enum, too
    error = UsageError if isinstance(layout, str) else ArgumentTypeError
    raise error(f"layout is {shown(layout)}: there are 'nchw' and 'nhwc'")


def exact_shape(name: str, shape: object) -> Shape:
    """Return a shape as a tuple of ints. Raises ArgumentTypeError, UsageError."""
    sizes = _listed(shape)
    if sizes is None:
        raise ArgumentTypeError(f"the shape of {name} is {shown(shape)}, not a size for each axis")
    return tuple(exact_size(f"the shape of {name}", size) for size in sizes)


def exact_sizes(name: str, value: object) -> int | Shape:
    """Return a size as an int, or several as a tuple of ints. Raises ArgumentTypeError, UsageError."""
    sizes = _listed(value)
    return exact_size(name, value) if sizes is None else tuple(exact_size(name, size) for size in sizes)


def exact_size(name: str, value: object) -> int:
    """Return a whole number as an int. Raises ArgumentTypeError for all others, and bools; UsageError."""
    size = whole_number(value)
    if size is None:
        raise ArgumentTypeError(f"{name} is {shown(value)}, not a whole number")
    if abs(size) > MOST:
        raise UsageError(f"{name} is {shown(size)}: sizes go up to {MOST}")
    return size


def whole_number(value: object) -> int | None:
    """Return a whole number of any type as an int; None for all else, and for bools."""
    if type(value) is int:
        return value
    plain = scalar(value)
    try:
        return None if isinstance(plain, bool) else operator.index(plain)
    except Exception:  # it is no whole number
        return None


def scalar(value: Any) -> Any:
    """Return the number in an array without axes as Python's, None for another element, all else as it is."""
    try:
        if value.ndim != 0:
            return value
        return value.item() if getattr(value.dtype, "kind", "f") in "biufc" else None
    except Exception:  # it is no array, or has no number to give
        return value


def _listed(value: Any) -> Sequence[object] | None:
    """The elements of a sequence or of an array with axes; None for all else."""
    if isinstance(value, Sequence):
        return None if isinstance(value, str | bytes | bytearray | memoryview) else value
    try:
        listed = value.tolist()
    except Exception:  # it is no array, or not on this device
        return None
    return listed if isinstance(listed, list) else None


def _first(shape: Shape, layout: str) -> Shape:
    """With the channels behind the samples."""
    return shape if layout == "nchw" else (shape[0], shape[-1], *shape[1:-1])


def _spatial(name: str, value: Sizes, dims: int) -> Shape:
    sizes = exact_sizes(name, value)
    if isinstance(sizes, int):
        return (sizes,) * dims
    if len(sizes) != dims:
        raise UsageError(f"{name} has {len(sizes)} sizes, x has {dims} spatial axes")
    return sizes
