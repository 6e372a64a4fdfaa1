"""Memory formats: predict which results of a convolution PyTorch writes with the channels last.

PyTorch infers the memory format of a tensor from its strides, even if axes of size one make them ambiguous.
It chooses a format by the input and the filter, and copies both to that format. On the CPU it then decides
again by these copies.

The rules here repeat `select_conv_backend`, `mkldnn_conv_use_channels_last`, `thnn_conv_use_channels_last`
and, for CUDA, `cudnn_conv_suggest_memory_format`. The tests compare them with PyTorch on the CPU only. On
CUDA a gradient with axes of size one may have other strides than PyTorch's.
"""

from functools import cache, lru_cache
from math import prod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mucudnn.torch import private
from mucudnn.torch.operators.options import Ints

# Names of PyTorch's implementations, as `select_backend` returns them.
_BY_GROUP = ("Slow2d", "SlowDilated2d")  # they compute a grouped convolution group by group
_CHANNELS_LAST = (*_BY_GROUP, "Mkldnn", "Cudnn")  # all others write contiguous results


class Geometry(NamedTuple):
    """The shape and the strides of a tensor (N, C, ...), in elements, with at least two spatial axes."""

    shape: Ints
    stride: Ints

    @property
    def looks_channels_last(self) -> bool:
        """True if PyTorch considers the tensor channels last, dense or not."""
        shape, stride = self
        if stride[1] == 0:
            return False
        least = 0
        for axis in (1, *range(len(shape) - 1, 1, -1), 0):
            if stride[axis] < least or (axis == 0 and least == stride[1]):
                return False
            least = stride[axis] * shape[axis]
        return True

    def brought_into(self, channels_last: bool) -> "Geometry":
        """Return the geometry after `contiguous`, which copies a tensor only if it is not packed."""
        packed = strides(self.shape, channels_last)
        axes = zip(self.shape, self.stride, packed, strict=True)
        is_packed = all(size == 1 or stride == other for size, stride, other in axes)
        return self if is_packed else Geometry(self.shape, packed)

    def part(self, axis: int, parts: int) -> "Geometry":
        """Return the geometry of a packed copy of one of `parts` equal parts along an axis."""
        sizes = list(self.shape)
        sizes[axis] //= parts
        return Geometry(sizes, self.stride).brought_into(self.looks_channels_last)


def strides(shape: Ints, channels_last: bool) -> tuple[int, ...]:
    """Return the strides of a dense tensor (N, C, ...) in a memory format."""
    axes = (1, *range(len(shape) - 1, 1, -1), 0) if channels_last else range(len(shape) - 1, -1, -1)
    dense, stride = [0] * len(shape), 1
    for axis in axes:
        dense[axis] = stride
        stride *= shape[axis]
    return tuple(dense)


def channels_last_results(
    x: Tensor,
    w: Tensor,
    bias: Tensor | None,
    stride: Ints,
    padding: Ints,
    dilation: Ints,
    groups: int,
    *,
    exact: bool,
) -> str:
    """Return the letters of the results that PyTorch writes with the channels last.

    "y" is the result of the forward pass, "x" and "w" are the two gradients. With `exact`, ask PyTorch which
    implementation it would run; without, as under a compiler, assume the usual implementation.
    """
    if torch.jit.is_tracing():
        return _rule_without_sizes(x, w)
    geometry_x, geometry_w = _geometry_of(x, copied=x.dim() == 3 and not x.is_contiguous()), _geometry_of(w)
    # In most calls both tensors are contiguous, and this saves 10 µs.
    if all(t.stride[-1] < t.stride[1] * t.shape[1] for t in (geometry_x, geometry_w)):
        return ""
    options = stride, padding, dilation, groups
    if not exact:
        return _rule(geometry_x, geometry_w, _usual(x), *options)
    try:
        unpadded = (0,) * len(stride)
        backend = private.select_backend(x, w, bias, stride, padding, dilation, False, unpadded, groups, None)
    except (RuntimeError, TypeError):  # NumPy's integers, or wrong arguments, which the engine refuses later
        return _rule(geometry_x, geometry_w, _usual(x), *options)
    implementation = _name_of(backend)
    if implementation == "Cudnn" and x.dtype == torch.float64:
        return ""
    return _known_rule(geometry_x, geometry_w, implementation, *options)


def _rule(
    x: Geometry, w: Geometry, implementation: str, stride: Ints, padding: Ints, dilation: Ints, groups: int
) -> str:
    if implementation not in _CHANNELS_LAST or not (x.looks_channels_last or w.looks_channels_last):
        return ""
    x, w = x.brought_into(True), w.brought_into(True)
    by_group = implementation in _BY_GROUP and groups > 1
    if by_group:
        x, w = x.part(1, groups), w.part(0, groups)
    if not (x.looks_channels_last or w.looks_channels_last):
        return ""
    roles = {"x", "w", "y"}
    if implementation == "Slow2d" and not w.looks_channels_last:
        roles.remove("w")
    if by_group:  # PyTorch joins the groups' results with channels last only if each of them looks so
        sizes = zip(x.shape[-len(stride) :], w.shape[-len(stride) :], stride, padding, dilation, strict=True)
        output = prod((i + 2 * p - d * (k - 1) - 1) // max(s, 1) + 1 for i, k, s, p, d in sizes)
        lengths = {"x": prod(x.shape[1:]), "w": prod(w.shape[1:]), "y": w.shape[0] * output}
        roles -= {role for role, length in lengths.items() if length == 1}
    return "".join(sorted(roles))


# The cache saves 20 µs a call. A compiler's symbolic sizes cannot be its keys, so call `_rule` for them.
_known_rule = lru_cache(4096)(_rule)


def _rule_without_sizes(x: Tensor, w: Tensor) -> str:
    """Return the rule's answer if all sizes are above one, because torch.jit.trace must not read sizes."""
    if x.dim() == 3 or _usual(x) not in _CHANNELS_LAST:
        return ""
    memory_format = torch.channels_last if x.dim() == 4 else torch.channels_last_3d
    is_last = any(not t.is_contiguous() and t.is_contiguous(memory_format=memory_format) for t in (x, w))
    return "wxy" if is_last else ""


@cache  # reading the name takes 2 µs
def _name_of(backend: Any) -> str:
    name: str = backend.name
    return name


def _geometry_of(tensor: Tensor, copied: bool = False) -> Geometry:
    shape, stride = tensor.shape, tensor.stride()
    if copied:
        stride = strides(shape, False)
    if len(shape) > 3:
        return Geometry(shape, stride)
    return Geometry((*shape[:2], 1, shape[2]), (*stride[:2], shape[2] * stride[2], stride[2]))


def _usual(x: Tensor) -> str:
    if x.dtype != torch.float64:
        return "Cudnn" if x.is_cuda else "Mkldnn"
    return "Slow2d" if x.dim() < 5 and not x.is_cuda else "Slow3d"
