"""Rules of operators that slide a window: convolutions, pooling, resampling, and padding."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

import mucudnn.torch
from mucudnn.problems.shapes import problem_of
from mucudnn.promises import FIXED, STRICT
from mucudnn.torch.streaming.nodes import all_of, shape_of
from mucudnn.torch.streaming.rules import Step, arguments, rule, run_whole
from mucudnn.torch.tracing.recorder import DATA_TYPES
from mucudnn.torch.windows.boxes import Box
from mucudnn.torch.windows.spans import Span, for_each_axis, reach, sliding, tapped, transposed
from mucudnn.torch.windows.taps import Taps, Weights, combine, taps_of

_Around = list[tuple[int, int]]  # rows to add before and after each axis, or to take away where negative


def _fit(windows: Sequence[Span], shape: Sequence[int]) -> tuple[list[Span], _Around]:
    """Return the rows of windows that exist, at least one, and the rows to add around them."""
    real = [
        met if (met := window.meet(Span(0, rows))).size else window.nearest(rows)
        for window, rows in zip(windows, shape, strict=True)
    ]
    return real, [(r.lo - w.lo, w.hi - r.hi) for r, w in zip(real, windows, strict=True)]


def _pad(x: Tensor, around: _Around, value: float = 0.0) -> Tensor:
    added = [max(rows, 0) for ends in reversed(around) for rows in ends]
    x = F.pad(x, added, value=value) if any(added) else x
    # A window that lies in the padding alone has a row of the tensor that it does not want.
    for axis, (before, after) in enumerate(around):
        if min(before, after) < 0:
            x = x.narrow(
                axis - len(around),
                max(-before, 0),
                x.size(axis - len(around)) + min(before, 0) + min(after, 0),
            )
    return x


@rule(
    *("conv1d", "conv1d.padding", "conv2d", "conv2d.padding", "conv3d", "conv3d.padding"),
    *("conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input"),
)
def _convolution(node: Node, box: Box) -> Step:
    given = arguments(node)
    x, w, bias, groups = given["input"], given["weight"], given["bias"], given["groups"]
    dims, back = len(shape_of(w)) - 2, "output_padding" in given
    if len(box) != dims + 2:  # without an axis of samples
        return run_whole(node)
    stride, dilation = (for_each_axis(given[name], dims) for name in ("stride", "dilation"))
    reaches = [reach(k, d) for k, d in zip(shape_of(w)[2:], dilation, strict=True)]
    if given["padding"] == "same":
        padding = tuple((rows - 1) // 2 for rows in reaches)
    else:
        padding = (0,) * dims if given["padding"] == "valid" else for_each_axis(given["padding"], dims)
    window = transposed if back else sliding
    spans = box[2:]
    windows = [window(*each)(span) for *each, span in zip(stride, padding, reaches, spans, strict=True)]
    real, around = _fit(windows, shape_of(x)[2:])
    # The engines pad both ends alike; what is left is added before.
    own = [0] * dims if back or min(map(min, around)) < 0 else [min(ends) for ends in around]
    rest = [(before - rows, after - rows) for (before, after), rows in zip(around, own, strict=True)]
    first = [
        span.lo + pad - each.lo * every
        for span, pad, each, every in zip(spans, padding, windows, stride, strict=True)
    ]

    def transpose(x: Tensor, w: Tensor, *bias: Tensor) -> Tensor:
        convolve = getattr(F, f"conv_transpose{dims}d")
        y = convolve(_pad(x, rest), w, *(bias or (None,)), stride, 0, 0, groups, dilation)
        # Rows of output padding, which no input reaches, are missing behind the last ones.
        ends = zip(first, spans, y.shape[2:], strict=True)
        return _pad(y, [(-lead, lead + span.size - rows) for lead, span, rows in ends])

    # PyTorch runs no Winograd on a CPU. In 3-D its errors are smaller, and all else takes half as long again.
    is_exact = node.meta["val"].device.type == "cpu" and dims < 3

    def run(x: Tensor, w: Tensor, *bias: Tensor, workspace: int | None = None) -> Tensor:
        convolve, x = getattr(mucudnn.torch, f"conv{dims}d"), _pad(x, rest)
        options: Any = {"workspace": workspace, "numerics": STRICT if is_exact else None, "choice": FIXED}
        return convolve(x, w, *(bias or (None,)), stride, own, dilation, groups, **options)

    channels = Span(0, shape_of(x)[1])
    inputs = [(x, (box[0], channels, *real)), (w, all_of(w))]
    inputs += [(bias, all_of(bias))] if bias is not None else []
    have = (box[0], all_of(node)[1], *spans)
    if back:
        return Step(inputs, transpose, have)
    padded = (each.size + sum(ends) for each, ends in zip(real, rest, strict=True))
    shape = (box[0].size, channels.size, *padded)
    data_type = DATA_TYPES[node.meta["val"].dtype]
    math = STRICT if is_exact else "default"
    problem = problem_of(data_type, "nchw", shape, shape_of(w), stride, own, dilation, groups, math)
    return Step(inputs, run, have, problem)


@rule("max_pool1d", "max_pool2d", "max_pool3d", "avg_pool1d", "avg_pool2d", "avg_pool3d")
def _pool(node: Node, box: Box) -> Step:
    given, name = arguments(node), node.target._schema.name.removeprefix("aten::")
    x, dims, is_max = given["self"], int(name[-2]), name.startswith("max")
    if len(box) != dims + 2 or (given["ceil_mode"] and not is_max):
        return run_whole(node)
    kernel = for_each_axis(given["kernel_size"], dims)
    stride = for_each_axis(given["stride"] or kernel, dims)
    padding, dilation = (for_each_axis(given.get(key, 1), dims) for key in ("padding", "dilation"))
    windows = [
        sliding(s, p, reach(k, d))(span)
        for k, s, p, d, span in zip(kernel, stride, padding, dilation, box[2:], strict=True)
    ]
    real, around = _fit(windows, shape_of(x)[2:])
    counts_padding, divisor = given.get("count_include_pad", True), given.get("divisor_override")

    def run(x: Tensor) -> Tensor:
        pool = getattr(F, name)
        if is_max:
            return pool(_pad(x, around, -math.inf), kernel, stride, 0, dilation)
        y = pool(_pad(x, around), kernel, stride)
        if divisor:
            return y * (math.prod(kernel) / divisor)
        if counts_padding:
            return y
        return y / pool(_pad(torch.ones_like(x[:1, :1]), around), kernel, stride)

    return Step([(x, (*box[:2], *real))], run)


@rule(
    *(f"upsample_{kind}.vec" for kind in ("nearest1d", "nearest2d", "nearest3d", "linear1d", "bilinear2d")),
    *(f"_upsample_nearest_exact{dims}d.vec" for dims in (1, 2, 3)),
    *("upsample_trilinear3d.vec", "upsample_bicubic2d.vec"),
)
def _resample(node: Node, box: Box) -> Step:
    given, name = arguments(node), node.target._schema.name
    x, align = given["input"], given.get("align_corners")
    size, shape, dims = shape_of(node)[2:], shape_of(x)[2:], len(box) - 2
    mode = name.partition("upsample_")[2][:-2].replace("_", "-")  # the name that F.interpolate knows
    exact = node.meta["val"].dtype == torch.float64
    every = dict[int, tuple[Taps, Weights | None]]()
    for axis in range(dims):
        scale = None if given["output_size"] is not None else given["scale_factors"][axis]
        output = size[axis] if scale is None else None
        every[axis + 2] = taps_of(shape[axis], mode, output, scale, align, None, False, exact)
    by_rows = _by_rows(x, box, every)
    # Rows of a tile lie as far apart as those of the whole: PyTorch resamples them, and borders are cut off.
    factors = [new // old for new, old in zip(size, shape, strict=True)]
    is_whole = all(f * n == new for f, n, new in zip(factors, shape, size, strict=True))
    if mode == "bicubic" or align or not is_whole:
        return by_rows
    [(_, need)] = by_rows.inputs

    def run(x: Tensor) -> Tensor:
        scales = [float(each) for each in factors]
        x = F.interpolate(x, scale_factor=scales, mode=mode)
        for axis, factor in enumerate(factors, 2):
            x = x.narrow(axis, box[axis].lo - need[axis].lo * factor, box[axis].size)
        return x

    return Step(by_rows.inputs, run)


def _by_rows(x: Node, box: Box, every: Mapping[int, tuple[Taps, Weights | None]]) -> Step:
    """Return the step of an operator whose result is, along some axes, sums of rows times weights."""
    need, local = list(box), list[tuple[int, Taps, Weights | None]]()
    for axis, (taps, weights) in every.items():
        out, need[axis] = box[axis], tapped(taps)(box[axis])
        own = tuple(tuple(row - need[axis].lo for row in rows) for rows in taps[out.lo : out.hi])
        local.append((axis, own, None if weights is None else weights[out.lo : out.hi]))

    def run(x: Tensor) -> Tensor:
        for each in local:
            x = combine(x, *each)
        return x

    return Step([(x, tuple(need))], run)


@rule("pad", "constant_pad_nd")
def _padding(node: Node, box: Box) -> Step:
    given = arguments(node)
    x, pads, mode, value = given["self"], given["pad"], given.get("mode", "constant"), given["value"]
    around = [(0, 0)] * len(box)
    for axis in range(len(pads) // 2):
        around[-1 - axis] = pads[2 * axis], pads[2 * axis + 1]
    if mode == "constant":
        wanted = [span.moved(-before) for span, (before, _) in zip(box, around, strict=True)]
        real, rest = _fit(wanted, shape_of(x))
        return Step([(x, tuple(real))], lambda x: _pad(x, rest, value or 0.0))
    every = dict[int, tuple[Taps, Weights | None]]()
    for axis, (rows, ends) in enumerate(zip(shape_of(x), around, strict=True)):
        if any(ends):  # PyTorch says which row each row shows
            shown = F.pad(torch.arange(float(rows))[None, None], ends, mode)
            every[axis] = tuple((int(row),) for row in shown[0, 0]), None
    return _by_rows(x, box, every)
