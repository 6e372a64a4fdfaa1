"""Functions along axes that are not divided."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.divided import Divided, axis_of, functions_named, handles
from mucudnn.torch.parallel.spatial.functions.elementwise import matching_part, widest
from mucudnn.torch.parallel.spatial.refusing import refuse


def whole_axis(x: Divided, function: Any, axis: Any) -> int:
    """Return an axis as a number from 0. Raises ArgumentTypeError if it is divided."""
    if not isinstance(axis, int):
        raise refuse(function, f"along {axis!r} is not in the table")
    number = axis_of(x, axis)
    if number in x.divided_axes:
        raise refuse(function, f"along axis {number}, which is divided, is not in the table")
    return number


def _resized(x: Divided, local: Tensor) -> Divided:
    """Return a tensor with another part, which may have another length on the undivided axes."""
    return x.with_local(local, [x.shape[i] if i in x.divided_axes else local.size(i) for i in range(x.dim())])


@handles(*functions_named("softmax", "log_softmax", "cumsum", "logsumexp", "amax", "amin", "var", "std"))
def _over_axes(function: Any, x: Divided, *rest: Any, **kwargs: Any) -> Any:
    dim = kwargs.get("dim", rest[0] if rest else None)
    for axis in dim if isinstance(dim, Sequence) else [dim]:
        whole_axis(x, function, axis)
    local = function(x.local, *rest, **kwargs)
    if local.dim() != x.dim():
        raise refuse(function, "without keepdim=True is not in the table")
    return _resized(x, local)


@handles(F.glu)
def _glu(function: Any, x: Divided, dim: int = -1) -> Any:
    return _over_axes(function, x, dim)


@handles(F.normalize)
def _normalize(
    function: Any, x: Divided, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None
) -> Divided:
    if out is not None:
        raise refuse(function, "into another is not in the table")
    return x.with_local(function(x.local, p, whole_axis(x, function, dim), eps))


@handles(*functions_named("cat", "concat", "concatenate"))
def _cat(function: Any, tensors: Sequence[Any], dim: int = 0, *, axis: int | None = None) -> Divided:
    like = widest(function, [x for x in tensors if isinstance(x, Divided)])
    along = whole_axis(like, function, dim if axis is None else axis)
    if len({tuple(n for i, n in enumerate(x.shape) if i != along) for x in tensors}) > 1:
        raise UsageError(f"tensors of {', '.join(str(tuple(x.shape)) for x in tensors)} do not fit")
    return _resized(like, torch.cat([matching_part(x, like) for x in tensors], along))


@handles(*functions_named("chunk", "split"))
def _split(function: Any, x: Divided, *rest: Any, **kwargs: Any) -> tuple[Divided, ...]:
    whole_axis(x, function, kwargs.get("dim", rest[1] if len(rest) > 1 else 0))
    return tuple(_resized(x, part) for part in function(x.local, *rest, **kwargs))


@handles(F.linear)
def _linear(function: Any, input: Divided, weight: Tensor, bias: Tensor | None = None) -> Divided:
    if input.dim() - 1 in input.divided_axes:
        raise refuse(function, "whose last axis is divided is not in the table")
    return input.with_local(F.linear(input.local, weight, bias), [*input.shape[:-1], weight.size(0)])


@handles(F.layer_norm, torch.layer_norm)
def _layer_norm(
    function: Any, input: Divided, normalized_shape: Sequence[int], *rest: Any, **kwargs: Any
) -> Divided:
    if any(axis >= input.dim() - len(normalized_shape) for axis in input.divided_axes):
        axes = tuple(normalized_shape)
        raise refuse(function, f"over the axes {axes}, one of which is divided, is not in the table")
    return input.with_local(function(input.local, normalized_shape, *rest, **kwargs))
