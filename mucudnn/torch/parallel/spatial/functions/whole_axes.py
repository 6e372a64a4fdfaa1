"""Functions along axes that are not divided."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)
from torch.utils import _pytree as pytree

from mucudnn.torch.parallel.spatial.border import without_axes
from mucudnn.torch.parallel.spatial.divided import Divided, axis_of, functions_named, handles
from mucudnn.torch.parallel.spatial.refusing import refuse


def whole_axis(x: Divided, function: Any, axis: Any) -> int:
    """Return an axis as a number from 0. Raises NotInTableError if it is divided."""
    if not isinstance(axis, int):
        raise refuse(function, f"along {axis!r} is not in the table")
    number = axis_of(x, axis)
    if number in x.divided_axes:
        raise refuse(function, f"along axis {number}, which is divided, is not in the table")
    return number


def resized(x: Divided, local: Tensor) -> Divided:
    """Return a tensor with another part, which may have another length on the undivided axes."""
    return x.with_local(local, [x.shape[i] if i in x.divided_axes else local.size(i) for i in range(x.dim())])


_ALONG = {
    0: "softmax log_softmax cumsum cumprod cummax cummin logcumsumexp logsumexp var std amax amin max min "
    "argmax argmin any all prod count_nonzero nansum median mode var_mean std_mean argsort sort",
    1: "norm topk kthvalue quantile",
}
_POSITIONS = {f: at for at, names in _ALONG.items() for f in functions_named(*names.split())}
_LAST = functions_named("topk", "kthvalue", "sort", "argsort")  # they take the last axis by default


@handles(*_POSITIONS, torch.linalg.vector_norm)
def along_axes(function: Any, x: Divided, *rest: Any, **kwargs: Any) -> Any:
    """Run a function along axes that are not divided. Raises NotInTableError for a divided axis."""
    at = _POSITIONS.get(function, 1)
    dim = kwargs.get("dim", kwargs.get("axis", rest[at] if len(rest) > at else None))
    if dim is None and function in _LAST:
        dim = -1
    axes = [whole_axis(x, function, axis) for axis in (dim if isinstance(dim, Sequence) else [dim])]
    keepdim = bool(kwargs.get("keepdim", False))

    def whole(y: Any) -> Any:
        if not isinstance(y, Tensor):
            return y
        return resized(x, y) if y.dim() == x.dim() else without_axes(x, y, axes, keepdim)

    return pytree.tree_map(whole, function(x.local, *rest, **kwargs))


@handles(F.glu)
def _glu(function: Any, x: Divided, dim: int = -1) -> Any:
    return resized(x, F.glu(x.local, whole_axis(x, function, dim)))


@handles(F.linear)
def _linear(function: Any, input: Divided, weight: Tensor, bias: Tensor | None = None) -> Divided:
    whole_axis(input, function, -1)
    return input.with_local(F.linear(input.local, weight, bias), [*input.shape[:-1], weight.size(0)])


@handles("layer_norm")
def _layer_norm(
    function: Any, input: Divided, normalized_shape: Sequence[int], *rest: Any, **kwargs: Any
) -> Divided:
    if any(axis >= input.dim() - len(normalized_shape) for axis in input.divided_axes):
        axes = tuple(normalized_shape)
        raise refuse(function, f"over the axes {axes}, one of which is divided, is not in the table")
    return input.with_local(function(input.local, normalized_shape, *rest, **kwargs))
