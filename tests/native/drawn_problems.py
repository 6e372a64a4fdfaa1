"""Hypothesis strategies for small problems and their divisions."""

from hypothesis import strategies as st
from reference import ALL_TYPES

from mucudnn._native import Problem

TRANSFORMS = ("WINOGRAD_NONFUSED", "FFT_TILING")
LINES = tuple(kernel for taps in (3, 5, 7) for kernel in ((1, taps), (taps, 1)))


def extent(kernel: tuple[int, ...], dilation: tuple[int, ...]) -> tuple[int, ...]:
    """Return the size of a dilated kernel."""
    return tuple(d * (k - 1) + 1 for d, k in zip(dilation, kernel, strict=True))


def least_padding(
    input_: tuple[int, ...], kernel: tuple[int, ...], dilation: tuple[int, ...]
) -> tuple[int, ...]:
    """Return the least padding with which a dilated kernel fits into the input."""
    sizes = zip(extent(kernel, dilation), input_, strict=True)
    return tuple(max(0, (size - space + 1) // 2) for size, space in sizes)


@st.composite
def problems(
    draw: st.DrawFn,
    *,
    data_types: tuple[str, ...] = ("f32",),
    layouts: tuple[str, ...] = ("nchw", "nhwc"),
    dims: tuple[int, ...] = (2, 3),
    kernel: tuple[int, ...] | None = None,
    plain: bool = False,
    most_samples: int = 7,
) -> Problem:
    """Draw a small problem of any kind. `plain` ones have stride, dilation and groups of 1."""
    rank = len(kernel) if kernel else draw(st.sampled_from(dims))
    sizes = st.integers(1, 11 if rank == 2 else 6)
    input_ = tuple(draw(sizes) for _ in range(rank))
    kernel = kernel or tuple(draw(st.integers(1, 4)) for _ in range(rank))
    dilation = tuple(1 if plain else draw(st.integers(1, 2)) for _ in range(rank))
    least = least_padding(input_, kernel, dilation)
    groups = 1 if plain else draw(st.integers(1, 3))
    return Problem(
        mini_batch=draw(st.integers(1, most_samples)),
        in_channels=groups * draw(st.integers(1, 5)),
        out_channels=groups * draw(st.integers(1, 5)),
        input=input_,
        kernel=kernel,
        stride=tuple(1 if plain else draw(st.integers(1, 3)) for _ in range(rank)),
        padding=tuple(draw(st.integers(p, p + 2)) for p in least),
        dilation=dilation,
        groups=groups,
        data_type=draw(st.sampled_from(data_types)),
        layout=draw(st.sampled_from(layouts)),
    )


@st.composite
def divisions(draw: st.DrawFn, mini_batch: int, most: int | None = None) -> list[int]:
    """Draw micro-batch sizes that add to the mini-batch, in any order. With `most` 1, draw no division."""
    sizes = [mini_batch] if most == 1 else []
    mini_batch -= sum(sizes)
    while mini_batch:
        sizes.append(draw(st.integers(1, mini_batch)))
        mini_batch -= sizes[-1]
    return sizes


@st.composite
def transformed_problems(draw: st.DrawFn, *, most_samples: int = 3) -> Problem:
    """Draw images and volumes that both transforms take, of several blocks of channels or of few."""
    depth = draw(st.sampled_from(((), (), (1,), (3,))))
    kernel = draw(st.sampled_from(((3, 3), (3, 3), *LINES, (5, 2), (1, 1))))
    dilation = tuple(draw(st.integers(1, 5)) for _ in kernel)
    input_ = tuple(draw(st.integers(1, 19)) for _ in kernel)
    least = least_padding(input_, kernel, dilation)
    sizes = zip(least, extent(kernel, dilation), strict=True)
    padding = tuple(draw(st.integers(p, max(p, size - 1))) for p, size in sizes)
    ones = tuple(1 for _ in depth)
    return Problem(
        mini_batch=draw(st.integers(1, most_samples)),
        in_channels=draw(st.sampled_from((1, 3, 16, 19))),
        out_channels=draw(st.sampled_from((1, 4, 16, 21))),
        input=(*(4 for _ in depth), *input_),
        kernel=(*depth, *kernel),
        padding=(*ones, *padding) if depth == (3,) else (*(0 for _ in depth), *padding),
        dilation=(*ones, *dilation),
        data_type=draw(st.sampled_from(("f32", "f16", "bf16"))),
        layout=draw(st.sampled_from(("nchw", "nhwc"))),
    )


@st.composite
def depthwise_problems(draw: st.DrawFn) -> Problem:
    """Draw images and volumes of odd sizes, with more and fewer channels than a vector has lanes."""
    rank = draw(st.sampled_from((2, 2, 3)))
    most = 21 if rank == 2 else 6
    input_ = tuple(draw(st.integers(1, most)) for _ in range(rank))
    kernel = tuple(draw(st.integers(1, 7 if rank == 2 else 3)) for _ in range(rank))
    dilation = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    least = least_padding(input_, kernel, dilation)
    groups = draw(st.integers(4, 37))
    return Problem(
        mini_batch=draw(st.integers(1, 4)),
        in_channels=groups,
        out_channels=groups * draw(st.sampled_from((1, 1, 2, 3))),
        input=input_,
        kernel=kernel,
        stride=tuple(draw(st.integers(1, 4)) for _ in range(rank)),
        padding=tuple(draw(st.integers(p, p + 3)) for p in least),
        dilation=dilation,
        groups=groups,
        data_type=draw(st.sampled_from(("f32", "f32", "f16", "bf16"))),
        layout=draw(st.sampled_from(("nchw", "nhwc"))),
    )


@st.composite
def padded_problems(draw: st.DrawFn) -> Problem:
    """Draw images and volumes whose filter is about as large as they are, with channels enough to divide."""
    rank = draw(st.sampled_from((2, 2, 3)))
    kernel = tuple(draw(st.sampled_from((2, 3, 3, 1, 5))) for _ in range(rank))
    input_ = tuple(draw(st.integers(8, 14) if rank == 2 else st.integers(3, 6)) for _ in range(rank))
    dilation = tuple(
        draw(st.integers((size + k) // (k + 1), size)) for size, k in zip(input_, kernel, strict=True)
    )
    stride = tuple(draw(st.sampled_from((1, 1, 1, 2, 3))) for _ in range(rank))
    least = least_padding(input_, kernel, dilation)
    groups = draw(st.sampled_from((1, 1, 1, 2)))
    return Problem(
        mini_batch=draw(st.integers(2, 4)),
        in_channels=groups * draw(st.sampled_from((33, 70))),
        out_channels=groups * draw(st.sampled_from((60, 130))),
        input=input_,
        kernel=kernel,
        stride=stride,
        padding=tuple(draw(st.integers(p, p + 2)) for p in least),
        dilation=dilation,
        groups=groups,
        data_type=draw(st.sampled_from(ALL_TYPES)),
        layout=draw(st.sampled_from(("nchw", "nhwc"))),
    )


@st.composite
def first_layers(draw: st.DrawFn) -> Problem:
    """Draw images and volumes with at least twice as many output channels as input channels."""
    rank = draw(st.sampled_from((2, 2, 3)))
    most = 17 if rank == 2 else 6
    input_ = tuple(draw(st.integers(1, most)) for _ in range(rank))
    kernel = tuple(draw(st.integers(1, 5 if rank == 2 else 3)) for _ in range(rank))
    dilation = tuple(draw(st.integers(1, 3)) for _ in range(rank))
    least = least_padding(input_, kernel, dilation)
    groups, channels = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    return Problem(
        mini_batch=draw(st.integers(1, 3)),
        in_channels=groups * channels,
        out_channels=groups * channels * draw(st.integers(2, 4)),
        input=input_,
        kernel=kernel,
        stride=tuple(draw(st.integers(1, 4)) for _ in range(rank)),
        padding=tuple(draw(st.integers(p, p + 3)) for p in least),
        dilation=dilation,
        groups=groups,
        layout=draw(st.sampled_from(("nchw", "nhwc"))),
    )


@st.composite
def problems_in_nhwc(draw: st.DrawFn) -> Problem:
    """Draw images and volumes whose lines of taps are shorter and longer than a vector."""
    depth = draw(st.sampled_from((0, 0, 3)))
    dims = 3 if depth else 2
    sizes = st.integers(1, 4)
    return Problem(
        mini_batch=draw(st.integers(1, 2)),
        in_channels=draw(st.sampled_from((1, 3, 7, 20, 66))),
        out_channels=draw(st.sampled_from((1, 4, 18, 64))),
        input=((depth,) if depth else ()) + (draw(st.integers(7, 9)), draw(st.integers(7, 12))),
        kernel=(*((draw(st.integers(1, 3)),) if depth else ()), draw(sizes), draw(sizes)),
        stride=tuple(draw(st.integers(1, 3)) for _ in range(dims)),
        padding=tuple(draw(st.integers(0, 3)) for _ in range(dims)),
        dilation=draw(st.sampled_from((1, 1, 2))) if not depth else 1,
        layout="nhwc",
        data_type=draw(st.sampled_from(("f32", "f32", "bf16", "f16", "f64"))),
    )


@st.composite
def strided_problems(draw: st.DrawFn) -> Problem:
    """Draw images and volumes whose lines are shorter and longer than two vectors."""
    depth = draw(st.sampled_from(((), (3,))))
    return Problem(
        mini_batch=draw(st.integers(1, 3)),
        in_channels=draw(st.integers(1, 3)),
        out_channels=draw(st.integers(1, 4)),
        input=(*depth, draw(st.integers(3, 6)), draw(st.integers(3, 90))),
        kernel=(*depth, 3, draw(st.integers(1, 3))),
        stride=(*(1 for _ in depth), draw(st.integers(1, 2)), draw(st.integers(2, 3))),
        padding=draw(st.integers(0, 2)),
    )
