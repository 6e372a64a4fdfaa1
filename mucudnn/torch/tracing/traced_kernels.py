"""The kernels of PyTorch's operators for convolutions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from mucudnn.errors import MucudnnError
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.shapes import problem_of
from mucudnn.promises import STRICT
from mucudnn.torch.operators.formats import Geometry, channels_last_results
from mucudnn.torch.private import tree_map

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
    is_last = _is_channels_last(function, args)
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
    """Return an operator's results on the device "meta" in the memory format that cuDNN would give them.

    PyTorch makes the results of a convolution contiguous there, whatever its input is.
    """
    is_last = _is_channels_last(function, args)
    if is_last is None:
        return result
    return tree_map(lambda each: each if each is None or each.dim() < 4 else _packed(each, is_last), result)


def copies_of(function: Any, args: tuple[Any, ...]) -> list[Tensor]:
    """Return the copies that a convolution makes of operands in another memory format than its own."""
    is_last = _is_channels_last(function, args)
    if is_last is None:
        return []
    operands = args[: 2 if function is _aten.convolution.default else 3]
    return [copy for operand in operands if (copy := _packed(operand, is_last)) is not operand]


def _packed(tensor: Tensor, is_last: bool) -> Tensor:
    """Return a tensor in a memory format: itself if it is packed so, else a new one without data."""
    shape, stride = tuple(tensor.shape), tensor.stride()
    due = Geometry(shape, stride).brought_into(is_last).stride
    if due == stride:
        return tensor
    return torch.empty_strided(shape, due, dtype=tensor.dtype, device=tensor.device)


def _is_channels_last(function: Any, args: tuple[Any, ...]) -> bool | None:
    """Return whether a GPU runs a convolution with the channels last.

    Return None for other operations, and for one spatial axis, where nothing depends on the strides.
    """
    if function not in (_aten.convolution.default, _aten.convolution_backward.default):
        return None
    x, w, _, stride, padding, dilation, _, _, groups = args[function is _aten.convolution_backward.default :][
        :9
    ]
    if x.dim() < 4:
        return None
    return "y" in channels_last_results(x, w, None, stride, padding, dilation, groups, exact=False)
