"""The kernels of PyTorch's operators for convolutions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mucudnn.errors import MucudnnError
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.shapes import problem_of
from mucudnn.promises import STRICT
from mucudnn.torch.operators.formats import channels_last_results, strides

_aten = torch.ops.aten
_DATA_TYPES = {torch.float32: "f32", torch.float16: "f16", torch.bfloat16: "bf16"}


def kernels_of(function: Any, args: tuple[Any, ...], name: str, math: str) -> list[Kernel]:
    """Return the kernels that an operation runs, if it is a convolution that mucudnn supports.

    `math` is the math mode of fp32; of the others, other types have strict arithmetic alone.
    """
    if function is _aten.convolution.default:
        x, w, _, stride, padding, dilation, transposed, output_padding, groups = args
        passes = ["backward_data" if transposed else "forward"]
        large = tuple(x.shape)
        if transposed:
            axes = zip(x.shape[2:], w.shape[2:], stride, padding, dilation, output_padding, strict=True)
            spatial = ((n - 1) * s - 2 * p + d * (k - 1) + 1 + more for n, k, s, p, d, more in axes)
            large = x.shape[0], w.shape[1] * groups, *spatial
    elif function is _aten.convolution_backward.default:
        dy, x, w, _, stride, padding, dilation, transposed, _, groups, mask = args
        names = ("forward" if transposed else "backward_data", "backward_filter")
        passes = [name for name, wanted in zip(names, mask, strict=False) if wanted]
        large = tuple(dy.shape if transposed else x.shape)
    else:
        return []
    if x.dtype not in _DATA_TYPES:
        return []
    is_last = _is_channels_last(x, w, stride, padding, dilation, groups)
    x_shape, w_shape = ((s[0], *s[2:], s[1]) if is_last else s for s in (large, tuple(w.shape)))
    layout = "nhwc" if is_last else "nchw"
    sizes = tuple(stride), tuple(padding), tuple(dilation)
    math_mode = math if x.dtype == torch.float32 or math == STRICT else "default"
    try:
        problem = problem_of(_DATA_TYPES[x.dtype], layout, x_shape, w_shape, *sizes, groups, math_mode)
    except MucudnnError:
        return []
    return [Kernel(problem, pass_, name) for pass_ in passes]


def in_format_of_gpu(function: Any, args: tuple[Any, ...], result: Any) -> Any:
    """Return the result of an operator on tensors without data, in the memory format that cuDNN writes.

    On the device "meta", PyTorch makes the result of a convolution contiguous, whatever its input is.
    """
    if function is not _aten.convolution.default:
        return result
    x, w, _, stride, padding, dilation, _, _, groups = args
    is_last = _is_channels_last(x, w, stride, padding, dilation, groups)
    due = strides(result.shape, is_last)
    if result.dim() < 4 or result.stride() == due:  # nothing depends on the strides of one spatial axis
        return result
    return torch.empty_strided(result.shape, due, dtype=result.dtype, device=result.device)


def _is_channels_last(x: Tensor, w: Tensor, stride: Any, padding: Any, dilation: Any, groups: int) -> bool:
    """Return whether a GPU would run a convolution with the channels last."""
    return x.dim() > 3 and "y" in channels_last_results(
        x, w, None, stride, padding, dilation, groups, exact=False
    )
