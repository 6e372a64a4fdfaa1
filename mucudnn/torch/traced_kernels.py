"""The kernels of PyTorch's operators for convolutions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mucudnn.errors import MucudnnError
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.shapes import problem_of
from mucudnn.torch.formats import Geometry

_aten = torch.ops.aten
_DATA_TYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def kernels_of(function: Any, args: tuple[Any, ...], name: str) -> list[Kernel]:
    """Return the kernels that an operation runs; none for other operations and unusual convolutions."""
    if function is _aten.convolution.default:
        x, w, _, stride, padding, dilation, transposed, _, groups = args
        passes = ["backward_data" if transposed else "forward"]
        large = _transposed_shape(x, w, args) if transposed else tuple(x.shape)
    elif function is _aten.convolution_backward.default:
        dy, x, w, _, stride, padding, dilation, transposed, _, groups, mask = args
        names = ("forward" if transposed else "backward_data", "backward_filter")
        passes = [name for name, wanted in zip(names, mask, strict=False) if wanted]
        large = tuple(dy.shape if transposed else x.shape)
    else:
        return []
    if x.dtype not in _DATA_TYPES:
        return []
    is_last = Geometry(x.shape, x.stride()).looks_channels_last and x.dim() > 3
    x_shape, w_shape = ((s[0], *s[2:], s[1]) if is_last else s for s in (large, tuple(w.shape)))
    layout = "nhwc" if is_last else "nchw"
    sizes = tuple(stride), tuple(padding), tuple(dilation)
    try:
        problem = problem_of(_DATA_TYPES[x.dtype], layout, x_shape, w_shape, *sizes, groups)
    except MucudnnError:
        return []
    return [Kernel(problem, pass_, name) for pass_ in passes]


def _transposed_shape(x: Tensor, w: Tensor, args: tuple[Any, ...]) -> tuple[int, ...]:
    """Return the shape of the result of a transposed convolution."""
    _, _, _, stride, padding, dilation, _, output_padding, groups = args
    sizes = zip(x.shape[2:], w.shape[2:], stride, padding, dilation, output_padding, strict=True)
    spatial = ((n - 1) * s - 2 * p + d * (k - 1) + 1 + more for n, k, s, p, d, more in sizes)
    return (x.shape[0], w.shape[1] * groups, *spatial)
