"""From the shapes of arrays to a problem, and back."""

import operator
from collections.abc import Iterable, Sequence

from mucudnn._native import Problem
from mucudnn.errors import ArgumentTypeError, UsageError

Shape = tuple[int, ...]
Sizes = int | Sequence[int]


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
    for name, shape in (("x", x), ("w", w)):
        if isinstance(shape, str) or not isinstance(shape, Iterable):
            raise ArgumentTypeError(f"the shape of {name} is {shape!r}, not a size for each axis")
    dims = len(x) - 2
    if layout not in ("nchw", "nhwc"):
        raise UsageError(f"layout is {layout!r}: there are 'nchw' and 'nhwc'")
    if dims not in (1, 2, 3) or len(w) != len(x):
        raise UsageError(
            f"x has {len(x)} axes and w {len(w)}: both need 2 and 1, 2 or 3 spatial ones, "
            f"in the order of layout {layout!r}"
        )
    (batch, channels, *input_), (filters, filter_channels, *kernel) = _first(x, layout), _first(w, layout)
    flat = (1,) if dims == 1 else ()
    if filter_channels * _integer("groups", groups) != channels:
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


def _first(shape: Shape, layout: str) -> Shape:
    """With the channels behind the samples."""
    return tuple(shape) if layout == "nchw" else (shape[0], shape[-1], *shape[1:-1])


def _spatial(name: str, value: Sizes, dims: int) -> Shape:
    sizes = tuple(value) if isinstance(value, Sequence) and not isinstance(value, str) else (value,) * dims
    if len(sizes) != dims:
        raise UsageError(f"{name} has {len(sizes)} sizes, x has {dims} spatial axes")
    return tuple(_integer(name, size) for size in sizes)


def _integer(name: str, value: object) -> int:
    try:
        return operator.index(value)  # type: ignore[arg-type]  # that it may be none is the point
    except TypeError:
        raise ArgumentTypeError(f"{name} is {value!r}, not a whole number") from None
