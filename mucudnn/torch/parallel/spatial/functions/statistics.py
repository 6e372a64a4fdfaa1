"""Extremes, variances and norms over axes of which some are divided."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.torch.parallel.spatial.border import total, without_axes
from mucudnn.torch.parallel.spatial.divided import Divided, axes_of, axis_of, handles
from mucudnn.torch.parallel.spatial.exchange.exchange import Exchange, connected_empty
from mucudnn.torch.parallel.spatial.functions.whole_axes import along_axes
from mucudnn.torch.parallel.spatial.refusing import refuse
from mucudnn.torch.windows.spans import product


def _is_local(x: Divided, axes: Sequence[int]) -> bool:
    return not set(axes) & set(x.divided_axes)


@handles("amax", "amin", "max", "min")
def _extreme(function: Any, x: Divided, *rest: Any, **kwargs: Any) -> Any:
    """Return extremes; those of an axis with their places only if the axis is not divided."""
    name = function.__name__
    dim = kwargs.get("dim", kwargs.get("axis", rest[0] if rest else None))
    if isinstance(dim, Tensor | Divided) or "other" in kwargs:
        other = dim if dim is not None else kwargs["other"]
        return (torch.maximum if name == "max" else torch.minimum)(x, other)
    axes = axes_of(x, dim)
    if _is_local(x, axes) or (name in ("max", "min") and dim is not None):
        return along_axes(function, x, *rest, **kwargs)
    reduce = torch.amax if name in ("max", "amax") else torch.amin
    keepdim = bool(kwargs.get("keepdim", rest[1] if len(rest) > 1 else False))
    local = x.local
    if not local.numel():  # a rank without rows must not decide
        kind = torch.finfo(x.dtype) if x.dtype.is_floating_point else torch.iinfo(x.dtype)
        shape = [1 if axis in axes else n for axis, n in enumerate(local.shape)]
        local = connected_empty(local, shape) + (kind.min if reduce is torch.amax else kind.max)
    else:
        local = reduce(local, axes, keepdim=True)
    for axis, owners in x.division.axes:
        if axis in axes:  # each owner's extreme is a row of a tensor with a row for each rank
            local = Exchange.of_all_rows(axis, owners.ranks, owners).fetch(local)
            local = reduce(local, axis, keepdim=True)
    if not keepdim:
        local = local.reshape([n for axis, n in enumerate(local.shape) if axis not in axes])
    return without_axes(x, local, axes, keepdim)


@handles("var", "std")
def _variance(
    function: Any, x: Divided, dim: Any = None, unbiased: Any = None, keepdim: bool = False, *,
    correction: Any = None,
) -> Any:  # fmt: skip
    if isinstance(dim, bool):
        dim, unbiased = None, dim
    axes = axes_of(x, dim)
    less = correction if correction is not None else int(unbiased is not False)
    if _is_local(x, axes):
        return along_axes(function, x, dim=axes, keepdim=keepdim, correction=less)
    count = product([x.shape[axis] for axis in axes])
    distance = x - total(x, axes, keepdim=True) / count
    variance = total(distance * distance, axes, keepdim) / (count - less)
    return variance.sqrt() if function.__name__ == "std" else variance


@handles("norm", torch.linalg.vector_norm, torch.linalg.norm)
def _norm(
    function: Any, x: Divided, p: Any = 2, dim: Any = None, keepdim: bool = False, **kwargs: Any
) -> Any:
    p = kwargs.pop("ord", p)
    if p not in (2, 2.0, "fro", None, 1, 1.0) or kwargs:
        raise refuse(function, f"with p={p!r} is not in the table")
    axes = axes_of(x, dim)
    if _is_local(x, axes):
        return along_axes(torch.linalg.vector_norm, x, 1 if p == 1 else 2, axes, keepdim=keepdim)
    return total(x.abs(), axes, keepdim) if p == 1 else total(x.square(), axes, keepdim).sqrt()


@handles("softmax", "log_softmax", "logsumexp")
def _softmax(function: Any, x: Divided, dim: Any = None, *rest: Any, **kwargs: Any) -> Any:
    """Return a softmax; along a divided axis the ranks add up their sums of exponentials."""
    name, dtype = function.__name__, kwargs.get("dtype")
    axes = axes_of(x, dim)
    if dim is None or _is_local(x, axes) or name == "logsumexp" or len(axes) > 1:
        return along_axes(function, x, dim, *rest, **kwargs)
    x = x if dtype is None else x.with_local(x.local.to(dtype))
    distance = x - torch.amax(x.detach(), axes, keepdim=True)
    exponential = distance.exp()
    sums = total(exponential, axes, keepdim=True)
    return exponential / sums if name == "softmax" else distance - sums.log()


@handles(F.normalize)
def _normalize(function: Any, x: Divided, p: float = 2.0, dim: int = 1, eps: float = 1e-12) -> Any:
    if axis_of(x, dim) not in x.divided_axes:
        return x.with_local(function(x.local, p, dim, eps))
    return x / _norm(torch.linalg.vector_norm, x, p, dim, keepdim=True).clamp_min(eps)


@handles("cosine_similarity")
def _cosine(function: Any, a: Any, b: Any, dim: int = 1, eps: float = 1e-8) -> Any:
    lengths = [torch.linalg.vector_norm(x, 2, dim).clamp_min(eps) for x in (a, b)]
    return (a * b).sum(dim) / (lengths[0] * lengths[1])
