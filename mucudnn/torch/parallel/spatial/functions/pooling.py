"""Pooling of divided tensors: max, average and adaptive, in one to three dimensions.

Max pooling saves the indices of its outputs, but not the values, which PyTorch saves too.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.border import redistribute, total
from mucudnn.torch.parallel.spatial.divided import Divided, Handler, handles, local_shape
from mucudnn.torch.parallel.spatial.exchange.exchange import Exchange, connected_empty
from mucudnn.torch.parallel.spatial.functions.resampling import matrix_product
from mucudnn.torch.parallel.spatial.refusing import refuse
from mucudnn.torch.windows.boxes import indices_of, places, whole
from mucudnn.torch.windows.spans import (
    Span,
    adaptive,
    for_each_axis,
    pooled_size,
    product,
    reach,
    sliding,
)


class Pool(NamedTuple):
    """A pooling within a rank: the exchange along each spatial axis, and arguments of PyTorch's operators.

    These operators take two or three axes, so `lift` gives a one-dimensional tensor another axis.
    """

    exchanges: tuple[Exchange, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    result: tuple[int, ...]

    def fetch(self, x: Tensor, fill: float) -> Tensor:
        """Return this rank's window of a tensor."""
        for exchange in self.exchanges:
            x = exchange.fetch(x, fill)
        return x

    def give_back(self, g: Tensor) -> Tensor:
        """Return the adjoint of `fetch`."""
        for exchange in reversed(self.exchanges):
            g = exchange.give_back(g)
        return g

    def lift(self, x: Tensor) -> Tensor:
        """Return a tensor with the axes that the operators take."""
        return x.unsqueeze(2) if len(self.exchanges) == 1 else x

    def lower(self, x: Tensor) -> Tensor:
        """Return a tensor without the axis that `lift` added."""
        return x.squeeze(2) if len(self.exchanges) == 1 else x


class _Max(torch.autograd.Function):
    """Max pooling of the rank's part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pool: Pool) -> tuple[Tensor, Tensor]:
        """Return this rank's part of the result, and the indices of its elements in the window."""
        window = pool.fetch(x, float("-inf"))
        ctx.pool, ctx.window = pool, tuple(window.shape)
        if 0 in pool.result:
            y, indices = x.new_empty(pool.result), x.new_empty(pool.result, dtype=torch.int64)
        else:
            aten = torch.ops.aten
            operator = aten.max_pool3d_with_indices if len(pool.kernel) == 3 else aten.max_pool2d_with_indices
            results = operator(pool.lift(window), pool.kernel, pool.stride, 0, pool.dilation, False)
            y, indices = map(pool.lower, results)
        ctx.save_for_backward(indices)
        ctx.mark_non_differentiable(indices)
        return y, indices

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor, _: Any) -> tuple[Tensor, None]:
        """Return the gradient of the part: each output's gradient goes to the row that was the largest."""
        [indices] = ctx.saved_tensors
        pool, window = ctx.pool, ctx.window
        shape = *window[:2], product(window[2:])
        if 0 in pool.result:
            flat = connected_empty(g, shape)
        else:
            flat = g.new_zeros(shape).scatter_add_(2, indices.flatten(2), g.flatten(2))
        return pool.give_back(flat.reshape(window)), None


class _Sum(torch.autograd.Function):
    """The sum under each window of the rank's part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pool: Pool) -> Tensor:
        """Return this rank's part of the sums."""
        window = pool.fetch(x, 0.0)
        ctx.pool, ctx.window = pool, tuple(window.shape)
        if 0 in pool.result:
            return window.new_empty(pool.result)
        average = F.avg_pool3d if len(pool.kernel) == 3 else F.avg_pool2d
        return pool.lower(average(pool.lift(window), pool.kernel, pool.stride, divisor_override=1))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the part."""
        pool, aten = ctx.pool, torch.ops.aten
        if 0 in pool.result:
            return pool.give_back(connected_empty(g, ctx.window)), None
        operator = aten.avg_pool3d_backward if len(pool.kernel) == 3 else aten.avg_pool2d_backward
        like = pool.lift(g.new_empty(1).expand(ctx.window)).contiguous()  # PyTorch reads only its shape
        padding = (0,) * len(pool.kernel)
        window = operator(pool.lift(g), like, pool.kernel, pool.stride, padding, False, True, 1)
        return pool.give_back(pool.lower(window)), None


def _pool(
    x: Divided, dims: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[Pool, list[int], tuple[int, ...]]:
    """Return the pooling, the shape of the result and the padding. Raises UsageError."""
    check_axes(x, dims)
    kernels = for_each_axis(kernel, dims)
    strides = kernels if stride is None or stride == [] or stride == () else for_each_axis(stride, dims)
    paddings, dilations = for_each_axis(padding, dims), for_each_axis(dilation, dims)
    shape, exchanges = list(x.shape[:2]), []
    for i in range(dims):
        span = reach(kernels[i], dilations[i])
        if not 0 <= paddings[i] <= kernels[i] // 2:
            raise UsageError(f"padding {paddings[i]} has to be at most half of the kernel, {kernels[i]}")
        size = pooled_size(x.shape[i + 2], paddings[i], strides[i], span, ceil_mode)
        if size < 1:
            raise UsageError(f"axis {i + 2} of {tuple(x.shape)} is too short for a kernel of {kernels[i]}")
        shape.append(size)
        exchanges.append(x.exchange_for(i + 2, size, sliding(strides[i], paddings[i], span)))
    more = (1,) * (dims == 1)
    arguments = (more + kernels, more + strides, more + dilations)
    return Pool(tuple(exchanges), *arguments, local_shape(shape, x.division)), shape, paddings


def check_axes(x: Divided, dims: int) -> None:
    """Raise NotInTableError for a tensor without an axis of samples, or whose channels are divided."""
    if x.dim() != dims + 2 or 1 in x.divided_axes:
        raise refuse(F.max_pool2d, f"in {dims} dimensions takes {dims + 2} axes with whole channels, not {x}")


def _max_pool(
    function: Any, input: Divided, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
    ceil_mode: bool = False, return_indices: bool = False, *, dims: int, with_indices: bool = False,
) -> Any:  # fmt: skip
    pool, shape, _ = _pool(input, dims, kernel_size, stride, padding, dilation, ceil_mode)
    local, indices = _Max.apply(input.local, pool)
    y = input.with_local(local, shape)
    if not with_indices:
        return y
    rows = places(indices, tuple(exchange.window for exchange in pool.exchanges))
    rows = [along.clamp_min(0) for along in rows]  # PyTorch never names a row of the padding
    return y, input.with_local(indices_of(rows, whole(input.shape[2:])), shape)


def _average_pool(
    function: Any, input: Divided, kernel_size: Any, stride: Any = None, padding: Any = 0,
    ceil_mode: bool = False, count_include_pad: bool = True, divisor_override: int | None = None, *,
    dims: int,
) -> Divided:  # fmt: skip
    pool, shape, paddings = _pool(input, dims, kernel_size, stride, padding, 1, ceil_mode)
    sums = _Sum.apply(input.local, pool)
    divisors = divisor_override
    if divisors is None:
        divisors = _divisors(input, shape, pool, paddings, count_include_pad)
    return input.with_local(sums / divisors, shape)


def _divisors(
    x: Divided, shape: Sequence[int], pool: Pool, paddings: Sequence[int], with_padding: bool
) -> Any:
    """Return the number of elements that PyTorch counts under each window of this rank."""
    result: Any = 1
    dims = len(paddings)
    for i, (kernel, stride, pad) in enumerate(
        zip(pool.kernel[-dims:], pool.stride[-dims:], paddings, strict=True)
    ):
        size, own = x.shape[i + 2], x.owners(i + 2).own(shape[i + 2])
        first = torch.arange(own.lo, own.hi, device=x.device) * stride - pad
        last = (first + kernel).clamp(max=size + pad * with_padding)
        counts = last - (first if with_padding else first.clamp(min=0))
        result = result * counts.reshape(-1, *(1,) * (dims - 1 - i))
    return result


def _adaptive_sizes(x: Divided, dims: int, output_size: Any) -> list[int]:
    check_axes(x, dims)
    sizes = for_each_axis(output_size, dims)
    return [x.shape[i + 2] if size is None else size for i, size in enumerate(sizes)]


def _adaptive_average(function: Any, input: Divided, output_size: Any, *, dims: int) -> Divided:
    sizes = _adaptive_sizes(input, dims, output_size)
    if all(size == 1 for size in sizes):
        sums = total(input, list(range(2, input.dim())), keepdim=True)
        return redistribute(sums / product(list(input.shape[2:])), input.division)
    for axis, size in enumerate(sizes, 2):
        if size != input.shape[axis]:
            window = adaptive(input.shape[axis], size)
            columns = [window(Span(o, o + 1)) for o in range(size)]
            taps = [range(column.lo, column.hi) for column in columns]
            weights = [[1 / column.size] * column.size for column in columns]
            input = matrix_product(input, axis, taps, weights)
    return input


def _adaptive_max(
    function: Any, input: Divided, output_size: Any, return_indices: bool = False, *, dims: int
) -> Divided:
    sizes = _adaptive_sizes(input, dims, output_size)
    x, cuts = input.local, []
    for axis, size in enumerate(sizes, 2):
        window = adaptive(input.shape[axis], size)
        exchange = input.exchange_for(axis, size, window)
        x, own = exchange.fetch(x), exchange.owners.own(size)
        cuts.append([window(Span(o, o + 1)).moved(-exchange.window.lo) for o in range(own.lo, own.hi)])
    return input.with_local(_max_of_cuts(x, cuts), [*input.shape[:2], *sizes])


def _max_of_cuts(x: Tensor, cuts: Sequence[Sequence[Span]]) -> Tensor:
    """Return the largest element of each block that cuts along all spatial axes make."""
    if any(not spans for spans in cuts):
        return connected_empty(x, (*x.shape[:2], *map(len, cuts)))
    if not cuts:
        return F.adaptive_max_pool1d(x.flatten(2), 1).squeeze(2)
    axis = x.dim() - len(cuts)
    return torch.stack([_max_of_cuts(x.narrow(axis, cut.lo, cut.size), cuts[1:]) for cut in cuts[0]], 2)


for _dims in (1, 2, 3):
    _handlers: dict[str, Handler] = {
        "max_pool": _max_pool,
        "avg_pool": _average_pool,
        "adaptive_avg_pool": _adaptive_average,
        "adaptive_max_pool": _adaptive_max,
    }
    for _name, _handler in _handlers.items():
        handles(f"{_name}{_dims}d")(partial(_handler, dims=_dims))
    handles(f"max_pool{_dims}d_with_indices")(partial(_max_pool, dims=_dims, with_indices=True))
