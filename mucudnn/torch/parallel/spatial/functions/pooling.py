"""Pooling of divided tensors: max, average and adaptive, in one to three dimensions.

Max pooling saves the indices of its own outputs and no values. PyTorch saves the values too.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.border import redivide, total
from mucudnn.torch.parallel.spatial.divided import Divided, handles, local_shape
from mucudnn.torch.parallel.spatial.exchange.exchange import Owners, fetch, give_back, nothing
from mucudnn.torch.parallel.spatial.functions.resampling import matrix_product
from mucudnn.torch.parallel.spatial.refusing import refuse
from mucudnn.torch.parallel.spatial.windows import (
    Span,
    adaptive,
    parts,
    pooled_size,
    product,
    reach,
    sliding,
    windows_of,
)

_LOWEST = float("-inf")


class Axis(NamedTuple):
    """The window of one axis: all ranks' parts and windows, and the owners."""

    axis: int
    parts: tuple[Span, ...]
    windows: tuple[Span, ...]
    owners: Owners


class Pool(NamedTuple):
    """A pooling within a rank: what each spatial axis fetches, and the arguments of PyTorch's operators."""

    axes: tuple[Axis, ...]
    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    result: tuple[int, ...]


class _Max(torch.autograd.Function):
    """Max pooling of the rank's part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pool: Pool) -> Tensor:
        """Return this rank's part of the result."""
        window = _fetched(x, pool, _LOWEST)
        ctx.pool, ctx.window = pool, tuple(window.shape)
        if 0 in pool.result:
            ctx.save_for_backward(x.new_empty(pool.result, dtype=torch.int64))
            return x.new_empty(pool.result)
        operator = (_max1d, torch.ops.aten.max_pool2d_with_indices, torch.ops.aten.max_pool3d_with_indices)
        y, indices = operator[len(pool.kernel) - 1](window, pool.kernel, pool.stride, 0, pool.dilation, False)
        ctx.save_for_backward(indices)
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the part: each output's goes to the row that was the largest."""
        [indices] = ctx.saved_tensors
        pool, window = ctx.pool, ctx.window
        dims = len(pool.kernel)
        shape = *window[:2], product(window[2:])
        if 0 in pool.result:
            flat = nothing(g, shape)
        else:
            flat = g.new_zeros(shape).scatter_add_(2, indices.flatten(2), g.flatten(2))
        found = flat.reshape(window)
        for one in reversed(pool.axes[:dims]):
            found = give_back(found, one.axis, one.parts, one.windows, one.owners)
        return found, None


def _max1d(
    x: Tensor, kernel: Any, stride: Any, padding: int, dilation: Any, ceil: bool
) -> tuple[Tensor, Tensor]:
    y, indices = torch.ops.aten.max_pool2d_with_indices(
        x.unsqueeze(2), (1, *kernel), (1, *stride), 0, (1, *dilation), ceil
    )
    return y.squeeze(2), indices.squeeze(2)


class _Average(torch.autograd.Function):
    """The sum under each window of the rank's part."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, pool: Pool) -> Tensor:
        """Return this rank's part of the sums."""
        window = _fetched(x, pool, 0.0)
        ctx.pool, ctx.window = pool, tuple(window.shape)
        return _summed(window, pool)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the part."""
        pool = ctx.pool
        found = _summed_adjoint(g, ctx.window, pool)
        for one in reversed(pool.axes):
            found = give_back(found, one.axis, one.parts, one.windows, one.owners)
        return found, None


def _summed(window: Tensor, pool: Pool) -> Tensor:
    if 0 in pool.result:
        return window.new_empty(pool.result)
    dims = len(pool.kernel)
    if dims == 3:
        return F.avg_pool3d(window, pool.kernel, pool.stride, divisor_override=1)
    kernel, stride = (1,) * (2 - dims) + pool.kernel, (1,) * (2 - dims) + pool.stride
    flat = window if dims == 2 else window.unsqueeze(2)
    found = F.avg_pool2d(flat, kernel, stride, divisor_override=1)
    return found if dims == 2 else found.squeeze(2)


def _summed_adjoint(g: Tensor, shape: tuple[int, ...], pool: Pool) -> Tensor:
    if 0 in pool.result:
        return nothing(g, shape)
    dims = len(pool.kernel)
    like = g.new_empty(1).expand(shape)  # PyTorch reads only its shape
    if dims == 3:
        result: Tensor = torch.ops.aten.avg_pool3d_backward(
            g, like.contiguous(), pool.kernel, pool.stride, (0, 0, 0), False, True, 1
        )
        return result
    kernel, stride = (1,) * (2 - dims) + pool.kernel, (1,) * (2 - dims) + pool.stride
    like, g = (like, g) if dims == 2 else (like.unsqueeze(2), g.unsqueeze(2))
    found = torch.ops.aten.avg_pool2d_backward(g, like.contiguous(), kernel, stride, (0, 0), False, True, 1)
    return found if dims == 2 else found.squeeze(2)


def _fetched(x: Tensor, pool: Pool, fill: float) -> Tensor:
    for one in pool.axes:
        x = fetch(x, one.axis, one.parts, one.windows, one.owners, fill)
    return x


def _pool(
    x: Divided, dims: int, kernel: Any, stride: Any, padding: Any, dilation: Any, ceil_mode: bool
) -> tuple[Pool, list[int], tuple[int, ...]]:
    """Return the pooling, the shape of the result and the padding. Raises UsageError."""
    if x.dim() != dims + 2 or 1 in x.divided_axes:
        raise UsageError(f"pooling in {dims} dimensions takes a divided tensor of {dims + 2} axes, not {x}")
    kernels = _each(kernel, dims)
    strides = kernels if stride is None or stride == [] or stride == () else _each(stride, dims)
    paddings, dilations = _each(padding, dims), _each(dilation, dims)
    shape, axes = list(x.shape[:2]), []
    for i in range(dims):
        span = reach(kernels[i], dilations[i])
        if not 0 <= paddings[i] <= kernels[i] // 2:
            raise UsageError(f"padding {paddings[i]} has to be at most half of the kernel, {kernels[i]}")
        size = pooled_size(x.shape[i + 2], paddings[i], strides[i], span, ceil_mode)
        if size < 1:
            raise UsageError(f"axis {i + 2} of {tuple(x.shape)} is too short for a kernel of {kernels[i]}")
        shape.append(size)
        outputs = parts(size, x.owners(i + 2).ranks)
        windows = windows_of(outputs, sliding(strides[i], paddings[i], span))
        axes.append(Axis(i + 2, x.parts(i + 2), windows, x.owners(i + 2)))
    result = local_shape(shape, x.division)
    return Pool(tuple(axes), kernels, strides, dilations, result), shape, paddings


def _each(value: Any, dims: int) -> tuple[int, ...]:
    sizes = tuple(value) if isinstance(value, Sequence) else (value,)
    return sizes * dims if len(sizes) == 1 else sizes


def _max_pool(function: Any, dims: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def call(
        input: Divided, kernel_size: Any, stride: Any = None, padding: Any = 0, dilation: Any = 1,
        ceil_mode: bool = False, return_indices: bool = False,
    ) -> Divided:  # fmt: skip
        if return_indices:
            raise refuse(function, "with return_indices is not in the table")
        pool, shape, _ = _pool(input, dims, kernel_size, stride, padding, dilation, ceil_mode)
        return input.with_local(_Max.apply(input.local, pool), shape)

    return call(*args, **kwargs)


def _average_pool(function: Any, dims: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def call(
        input: Divided, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: int | None = None,
    ) -> Divided:  # fmt: skip
        pool, shape, paddings = _pool(input, dims, kernel_size, stride, padding, 1, ceil_mode)
        y = _Average.apply(input.local, pool)
        return input.with_local(
            y / _divisors(input, shape, pool, paddings, count_include_pad, divisor_override), shape
        )

    return call(*args, **kwargs)


def _divisors(
    x: Divided,
    shape: Sequence[int],
    pool: Pool,
    paddings: Sequence[int],
    with_padding: bool,
    given: int | None,
) -> Any:
    """Return the number of elements that PyTorch counts under each window of this rank."""
    if given is not None:
        return given
    result: Any = 1
    for i, kernel in enumerate(pool.kernel):
        axis = i + 2
        own = parts(shape[axis], x.owners(axis).ranks)[x.owners(axis).rank]
        size, pad = x.shape[axis], paddings[i]
        counts = []
        for o in range(own.lo, own.hi):
            lo = o * pool.stride[i] - pad
            hi = min(lo + kernel, size + pad)
            counts.append(hi - lo if with_padding else min(hi, size) - max(lo, 0))
        along = torch.tensor(counts, dtype=x.dtype, device=x.device)
        result = result * along.reshape(-1, *(1,) * (len(pool.kernel) - 1 - i))
    return result


def _adaptive_sizes(x: Divided, dims: int, output_size: Any) -> list[int]:
    if x.dim() != dims + 2 or 1 in x.divided_axes:
        raise UsageError(f"pooling in {dims} dimensions takes a divided tensor of {dims + 2} axes, not {x}")
    given = _each(output_size, dims)
    return [x.shape[i + 2] if size is None else size for i, size in enumerate(given)]


def _adaptive_average(function: Any, dims: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def call(input: Divided, output_size: Any) -> Divided:
        sizes = _adaptive_sizes(input, dims, output_size)
        if all(size == 1 for size in sizes):
            axes = list(range(2, input.dim()))
            whole = total(input, axes, keepdim=True) / product(list(input.shape[2:]))
            return redivide(whole, input.division)
        for i, size in enumerate(sizes):
            input = _averaged(input, i + 2, size)
        return input

    return call(*args, **kwargs)


def _averaged(x: Divided, axis: int, size: int) -> Divided:
    """Return adaptive averages along one axis."""
    if size == x.shape[axis]:
        return x
    window = adaptive(x.shape[axis], size)
    columns = [window(Span(o, o + 1)) for o in range(size)]
    taps = [list(range(column.lo, column.hi)) for column in columns]
    weights = [[1 / column.size] * column.size for column in columns]
    return matrix_product(x, axis, taps, weights)


def _adaptive_max(function: Any, dims: int, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def call(input: Divided, output_size: Any, return_indices: bool = False) -> Divided:
        if return_indices:
            raise refuse(function, "with return_indices is not in the table")
        sizes = _adaptive_sizes(input, dims, output_size)
        x, shape = input.local, [*input.shape[:2], *sizes]
        cuts: list[list[Span]] = []
        for i, size in enumerate(sizes):
            axis, owners = i + 2, input.owners(i + 2)
            window, outputs = adaptive(input.shape[axis], size), parts(size, owners.ranks)
            windows = windows_of(outputs, window)
            x = fetch(x, axis, input.parts(axis), windows, owners)
            own, first = outputs[owners.rank], windows[owners.rank].lo
            cuts.append([window(Span(o, o + 1)).moved(-first) for o in range(own.lo, own.hi)])
        return input.with_local(_max_of_cuts(x, cuts), shape)

    return call(*args, **kwargs)


def _max_of_cuts(x: Tensor, cuts: Sequence[Sequence[Span]]) -> Tensor:
    """Return the largest element of each block that cuts along all spatial axes make; the first of equals."""
    if any(not one for one in cuts):
        return nothing(x, (*x.shape[:2], *map(len, cuts)))
    if not cuts:
        return F.adaptive_max_pool1d(x.flatten(2), 1).squeeze(2)
    axis = x.dim() - len(cuts)
    return torch.stack([_max_of_cuts(x.narrow(axis, cut.lo, cut.size), cuts[1:]) for cut in cuts[0]], 2)


def _register() -> None:
    for dims in (1, 2, 3):
        for kind, names in {
            _max_pool: ("max_pool{}d",),
            _average_pool: ("avg_pool{}d",),
            _adaptive_average: ("adaptive_avg_pool{}d",),
            _adaptive_max: ("adaptive_max_pool{}d",),
        }.items():
            functions = [
                getattr(place, name.format(dims), None)
                for name in names
                for place in (torch, F, torch._C._nn)
            ]

            def call(function: Any, args: Any, kwargs: Any, kind: Any = kind, dims: int = dims) -> Any:
                return kind(function, dims, args, kwargs)

            handles(*functions)(call)


_register()
