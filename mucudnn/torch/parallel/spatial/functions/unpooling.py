"""Max unpooling of divided tensors: each value returns to the place from which max pooling took it.

Each rank fetches the values whose windows meet its rows. If an index lies outside of its value's window, as
after a dilated pooling, this misses the value, and unpooling runs on gathered tensors.
"""

from functools import partial
from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.torch.parallel.spatial.border import matching_part
from mucudnn.torch.parallel.spatial.divided import Divided, handles
from mucudnn.torch.parallel.spatial.exchange.exchange import add_up
from mucudnn.torch.parallel.spatial.functions.pooling import check_axes
from mucudnn.torch.parallel.spatial.refusing import refuse
from mucudnn.torch.windows.boxes import indices_of, places, sizes, whole
from mucudnn.torch.windows.spans import Span, for_each_axis, product, transposed, windows_of


def _max_unpool(
    function: Any, input: Divided, indices: Any, kernel_size: Any, stride: Any = None, padding: Any = 0,
    output_size: Any = None, *, dims: int,
) -> Divided:  # fmt: skip
    check_axes(input, dims)
    if torch.compiler.is_compiling():
        raise refuse(function, "whose indices are not known yet is not in the table")
    kernels, paddings = for_each_axis(kernel_size, dims), for_each_axis(padding, dims)
    strides = kernels if stride is None else for_each_axis(stride, dims)
    lengths = F._unpool_output_size(input, kernels, strides, paddings, output_size)  # type: ignore[attr-defined]
    values, indices = input.local, matching_part(indices, input.shape, input.division)
    for axis in input.divided_axes:
        window = transposed(strides[axis - 2], paddings[axis - 2], kernels[axis - 2])
        windows = windows_of(input.owners(axis).parts(lengths[axis - 2]), window)
        exchange = input.exchange(axis, [rows.meet(Span(0, input.shape[axis])) for rows in windows])
        values, indices = exchange.fetch(values), exchange.fetch(indices)
    own = tuple(input.owners(axis).own(length) for axis, length in enumerate(lengths, 2))
    rows = places(indices, whole(lengths))
    is_own = torch.stack([(r >= span.lo) & (r < span.hi) for r, span in zip(rows, own, strict=True)]).all(0)
    if not is_own.is_meta and add_up(is_own.sum(), input.division.groups) != input.numel():
        raise refuse(function, "with indices outside of their windows is not in the table")
    count = product(sizes(own))
    at = torch.where(is_own, indices_of(rows, own), count)  # the last element is for values of other ranks
    flat = values.new_zeros(*values.shape[:2], count + 1).scatter(2, at.flatten(2), values.flatten(2))
    local = flat[..., :count].reshape(*values.shape[:2], *sizes(own))
    return input.with_local(local, [*input.shape[:2], *lengths])


for _dims in (1, 2, 3):
    handles(f"max_unpool{_dims}d")(partial(_max_unpool, dims=_dims))
