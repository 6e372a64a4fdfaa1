"""Rules of operators that slide a window: convolutions, pooling, resampling, and padding."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

import mucudnn.torch
from mucudnn.torch.parallel.spatial.functions.resampling import combine, taps_of
from mucudnn.torch.parallel.spatial.windows import Span, for_each_axis, reach, sliding, tapped, transposed
from mucudnn.torch.streaming.boxes import Box, all_of, shape_of
from mucudnn.torch.streaming.rules import Step, arguments, rule, run_whole

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

    def run(x: Tensor, w: Tensor, *bias: Tensor) -> Tensor:
        x = _pad(x, rest)
        if back:
            convolve = getattr(F, f"conv_transpose{dims}d")
            y = convolve(x, w, *(bias or (None,)), stride, 0, 0, groups, dilation)
            for axis, (lead, span) in enumerate(zip(first, spans, strict=True), 2):
                missing = lead + span.size - y.size(axis)  # rows of output padding, which no input reaches
                y = F.pad(y, [0, 0] * (y.dim() - 1 - axis) + [0, missing]) if missing > 0 else y
                y = y.narrow(axis, lead, span.size)
            return y
        convolve = getattr(mucudnn.torch, f"conv{dims}d")
        return convolve(x, w, *(bias or (None,)), stride, own, dilation, groups)

    inputs = [(x, (box[0], Span(0, shape_of(x)[1]), *real)), (w, all_of(w))]
    inputs += [(bias, all_of(bias))] if bias is not None else []
    return Step(inputs, run, (box[0], all_of(node)[1], *spans))


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
    mode = "nearest-exact" if "exact" in name else "nearest" if "nearest" in name else "bilinear"
    mode = "bicubic" if "cubic" in name else mode
    exact = node.meta["val"].dtype == torch.float64
    need, weights_of = list(box), list[Any]()
    for axis in range(dims):
        scale = None if given["output_size"] is not None else given["scale_factors"][axis]
        output = size[axis] if scale is None else None
        taps, weights = taps_of(shape[axis], mode, output, scale, align, None, False, exact)
        out = box[axis + 2]
        need[axis + 2] = rows = tapped(taps)(out)
        local = tuple(tuple(row - rows.lo for row in each) for each in taps[out.lo : out.hi])
        weights_of.append((local, None if weights is None else weights[out.lo : out.hi]))
    # Rows of a tile lie as far apart as those of the whole: PyTorch resamples them, and borders are cut off.
    factors = [new // old for new, old in zip(size, shape, strict=True)]
    by_torch = (
        "bicubic" not in mode
        and not align
        and tuple(f * n for f, n in zip(factors, shape, strict=True)) == size
    )
    linear = {1: "linear", 2: "bilinear", 3: "trilinear"}[dims]

    def run(x: Tensor) -> Tensor:
        if not by_torch:
            for axis, each in enumerate(weights_of, 2):
                x = combine(x, axis, *each)
            return x
        factor = [float(each) for each in factors]
        x = F.interpolate(x, scale_factor=factor, mode=linear if mode == "bilinear" else mode)
        for axis, factor_ in enumerate(factors, 2):
            x = x.narrow(axis, box[axis].lo - need[axis].lo * factor_, box[axis].size)
        return x

    return Step([(x, tuple(need))], run)


@rule("pad", "constant_pad_nd")
def _padding(node: Node, box: Box) -> Step:
    given = arguments(node)
    x, pads, mode, value = given["self"], given["pad"], given.get("mode", "constant"), given["value"]
    shape, before = shape_of(x), [0] * len(box)
    before[: -len(pads) // 2 - 1 : -1] = pads[::2]
    wanted = [span.moved(-rows) for span, rows in zip(box, before, strict=True)]
    if mode == "constant":
        real, around = _fit(wanted, shape)
        return Step([(x, tuple(real))], lambda x: _pad(x, around, value or 0.0))
    sources = [[_source(row, rows, mode) for row in range(*s)] for s, rows in zip(wanted, shape, strict=True)]
    need = tuple(Span(min(rows), max(rows) + 1) for rows in sources)

    def run(x: Tensor) -> Tensor:
        for axis, (rows, span) in enumerate(zip(sources, need, strict=True)):
            local = [row - span.lo for row in rows]
            if local != list(range(x.size(axis))):
                x = x.index_select(axis, torch.tensor(local, device=x.device))
        return x

    return Step([(x, need)], run)


def _source(row: int, rows: int, mode: str) -> int:
    """Return the row of a tensor that a padding shows at a row outside."""
    if mode == "circular":
        return row % rows
    if mode == "replicate":
        return min(max(row, 0), rows - 1)
    row = abs(row)
    return 2 * (rows - 1) - row if row >= rows else row


@rule("pixel_shuffle", "pixel_unshuffle")
def _shuffle(node: Node, box: Box) -> Step:
    given = arguments(node)
    x, shuffles = given["self"], "upscale_factor" in given
    factor = given["upscale_factor" if shuffles else "downscale_factor"]
    if shuffles:
        rows = [Span(span.lo // factor, -(-span.hi // factor)) for span in box[-2:]]
        have = [Span(span.lo * factor, span.hi * factor) for span in rows]
        run = F.pixel_shuffle
    else:
        rows, have = [Span(span.lo * factor, span.hi * factor) for span in box[-2:]], list(box[-2:])
        run = F.pixel_unshuffle
    channels = slice(-3, -2)
    need = (*box[:-3], *all_of(x)[channels], *rows)
    return Step([(x, need)], lambda x: run(x, factor), (*box[:-3], *all_of(node)[channels], *have))
