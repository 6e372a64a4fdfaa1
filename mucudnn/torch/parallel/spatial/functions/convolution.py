"""Convolutions of divided tensors: fetch the window, convolve it unpadded, save only received rows.

The padding of a divided axis is part of the window, so a layer has at most two local problems: one that most
ranks share, and that of the last rank. A local convolution runs in mucudnn if the module is converted or the
function is mucudnn's, and in PyTorch otherwise.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.errors import UsageError
from mucudnn.promises import promise_of
from mucudnn.torch.layers import functional as divided_functions
from mucudnn.torch.operators.operands import Operands, autocast, prepare_operands, spelled
from mucudnn.torch.operators.options import Options, handle_of
from mucudnn.torch.operators.passes import can_divide
from mucudnn.torch.parallel.spatial.divided import Divided, handles, local_shape
from mucudnn.torch.parallel.spatial.exchange.exchange import Exchange, connected_empty
from mucudnn.torch.parallel.spatial.functions.padding import Padded, pad_axes
from mucudnn.torch.parallel.spatial.refusing import refuse
from mucudnn.torch.windows.spans import (
    convolved_size,
    for_each_axis,
    reach,
    sliding,
    transposed,
    transposed_size,
    windows_of,
    with_rows,
)


class Local(NamedTuple):
    """A convolution within a rank, on its windows: the arguments of PyTorch's operator, and the local result.

    `leads` are the rows to crop at the beginning of a transposed convolution's result, for each exchange.
    mucudnn's operators run it with the options `engine`, or PyTorch's without. With `same`, each row is
    computed separately.
    """

    exchanges: tuple[Exchange, ...]
    leads: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int
    result: tuple[int, ...]
    engine: dict[str, Any] | None = None
    same: bool = False

    @property
    def is_empty(self) -> bool:
        """True if this rank has no element of the result."""
        return 0 in self.result

    @property
    def arguments(self) -> tuple[Any, ...]:
        """The arguments that PyTorch's operators take from stride to groups."""
        return self[2:8]


class _Convolution(torch.autograd.Function):
    """A convolution of the rank's part. It saves the part, the received rows and the filter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, local: Local) -> Tensor:
        """Return this rank's part of the result."""
        ctx.local = local
        kept: list[Tensor] = []
        window = x
        for exchange in local.exchanges:
            fetched = exchange.fetch(window)
            if fetched is not window:
                kept += exchange.received(fetched)
            window = fetched
        ctx.save_for_backward(x, w, *kept)
        if local.is_empty:
            return x.new_empty(local.result)
        return _cropped(_run(window, w, bias, local), local)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None]:
        """Return the gradients of the part, of the filter and of the bias."""
        local: Local = ctx.local
        x, w, *kept = ctx.saved_tensors
        need_x, need_w, need_bias = ctx.needs_input_grad[:3]
        window = x
        for exchange in local.exchanges:
            if not exchange.is_local:
                before, after, *kept = kept
                if need_w:
                    window = exchange.rebuild(window, before, after)
                else:  # only the shape is needed
                    shape = with_rows(window.shape, exchange.axis, exchange.window.size)
                    window = window.new_empty(1).expand(shape)
        if local.is_empty:
            dx = connected_empty(g, window.shape) if need_x else None
            dw = torch.zeros_like(w) if need_w else None
            dbias = w.new_zeros(g.size(1)) if need_bias else None
        else:
            g = _uncropped(g, window, w, local)
            dx, dw, dbias = _gradients(window, w, g, local, (need_x, need_w, need_bias))
        if dx is not None:
            for exchange in reversed(local.exchanges):
                dx = exchange.give_back(dx)
        return dx, dw, dbias, None


def _engine(x: Tensor, w: Tensor, bias: Tensor | None, local: Local) -> Operands | None:
    """Return the arguments of mucudnn's operator, or None if PyTorch's own convolution has to run."""
    if local.engine is None or not can_divide(x, w):
        return None
    dims = len(local.stride)
    return prepare_operands(
        dims, x, w, bias, local.stride, local.padding, local.dilation, local.groups, fallback=True,
        **local.engine,
    )  # fmt: skip


def _run(window: Tensor, w: Tensor, bias: Tensor | None, local: Local) -> Tensor:
    if local.same:
        return _row_by_row(window, w, bias, local, [exchange.axis for exchange in local.exchanges])
    engine = _engine(window, w, bias, local)
    if engine is None:
        return torch.ops.aten.convolution.default(window, w, bias, *local.arguments)
    operator = torch.ops.mucudnn.convolution_forward.default
    return operator(engine.x, engine.w, engine.bias, *engine.options)


def _row_by_row(window: Tensor, w: Tensor, bias: Tensor | None, local: Local, axes: list[int]) -> Tensor:
    """Return the convolution with one problem for each row of the axes.

    All these problems are equal, so PyTorch computes each of them with the same algorithm, and a row has the
    same bits however many rows the rank has.
    """
    if not axes:
        return torch.ops.aten.convolution.default(window, w, bias, *local.arguments)
    axis, *rest = axes
    stride, span = local.stride[axis - 2], reach(w.size(axis), local.dilation[axis - 2])
    rows = range(0, local.result[axis] * stride, stride)
    results = [_row_by_row(window.narrow(axis, row, span), w, bias, local, rest) for row in rows]
    return torch.cat(results, axis)


def _gradients(
    window: Tensor, w: Tensor, g: Tensor, local: Local, needed: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    engine = _engine(window, w, None, local)
    if engine is None:
        return torch.ops.aten.convolution_backward.default(  # type: ignore[no-any-return]  # three tensors
            g, window, w, [w.size(1) * local.groups if local.transposed else w.size(0)], *local.arguments,
            list(needed),
        )  # fmt: skip
    options: Options = engine.options
    operators = torch.ops.mucudnn
    g = g.contiguous() if not options.channels_last else g
    dx = dw = dbias = None
    if needed[0]:
        dx = operators.convolution_backward_data.default(g, engine.w, list(window.shape), *options)
    if needed[1]:
        dw = operators.convolution_backward_filter.default(engine.x, g, list(w.shape), *options)
    if needed[2]:
        dbias = g.sum([0, *range(2, g.dim())])
    return dx, dw, dbias


def _cropped(y: Tensor, local: Local) -> Tensor:
    """Return the rows of a transposed convolution that this rank needs, as a tensor of their own."""
    cut = y
    for exchange, lead in zip(local.exchanges, local.leads, strict=True):
        rows = local.result[exchange.axis]
        if cut.size(exchange.axis) != rows:
            cut = cut.narrow(exchange.axis, lead, rows)
    return y if cut is y else cut.clone(memory_format=torch.contiguous_format)


def _uncropped(g: Tensor, window: Tensor, w: Tensor, local: Local) -> Tensor:
    """Return the gradient with a zero for each row that `_cropped` took away."""
    if not local.transposed:
        return g
    around = [0] * (2 * (g.dim() - 2))
    for (axis, *_), lead in zip(local.exchanges, local.leads, strict=True):
        span = reach(w.size(axis), local.dilation[axis - 2])
        full = (window.size(axis) - 1) * local.stride[axis - 2] + span
        after = 2 * (g.dim() - 1 - axis)
        around[after : after + 2] = lead, full - lead - g.size(axis)
    return F.pad(g, around) if any(around) else g


@handles("conv1d", "conv2d", "conv3d")
def _convolve(
    function: Any, input: Divided, weight: Tensor, bias: Tensor | None = None, stride: Any = 1,
    padding: Any = 0, dilation: Any = 1, groups: int = 1, *, engine: dict[str, Any] | None = None,
) -> Divided:  # fmt: skip
    """Return a convolution; `engine` has the options of mucudnn's operators. Raises UsageError."""
    w, dims = weight, weight.dim() - 2
    x = _check(function, input, w, w.size(1) * groups)
    strides, dilations = for_each_axis(stride, dims), for_each_axis(dilation, dims)
    reaches = [reach(k, d) for k, d in zip(w.shape[2:], dilations, strict=True)]
    paddings = _paddings(padding, dims, strides, reaches)
    shape = [x.shape[0], w.size(0)]
    for axis, (around, stride_, span) in enumerate(zip(paddings, strides, reaches, strict=True), 2):
        size = convolved_size(x.shape[axis], around, stride_, span)
        if size < 1:
            raise UsageError(
                f"the padded axis {axis} of {tuple(x.shape)} is shorter than the filter of {tuple(w.shape)}"
            )
        shape.append(size)
    exchanges, own_padding, part = [], [0] * dims, None
    if isinstance(x, Padded) and x.may_join(paddings) and x.division.numerics != "same":
        part, paddings = _window_of_padded(x, shape, paddings, strides, reaches)
    for i, (before, after) in enumerate(paddings):
        if before == after and (i + 2 not in x.divided_axes or part is not None):
            own_padding[i] = before
        else:
            exchanges.append(x.exchange_for(i + 2, shape[i + 2], sliding(strides[i], before, reaches[i])))
    local = Local(
        tuple(exchanges), (0,) * len(exchanges), strides, tuple(own_padding), dilations, False, (0,) * dims,
        groups, local_shape(shape, x.division), engine, x.division.numerics == "same",
    )  # fmt: skip
    return _apply(x, w, bias, shape, local, part)


def _window_of_padded(
    x: Padded, shape: Sequence[int], paddings: Sequence[tuple[int, int]], strides: Sequence[int],
    reaches: Sequence[int],
) -> tuple[Tensor, list[tuple[int, int]]]:  # fmt: skip
    """Return the rows of a padded tensor that this rank reads for a result of this shape, and further zeros.

    Otherwise ranks would exchange rows for the padding and again for the convolution, and copy their part
    each time.
    """
    part, around, further = x.source.local, list(x.around), list(paddings)
    for i, ends in enumerate(zip(x.around[2:], paddings, strict=True)):
        axis, (before, after) = i + 2, map(sum, zip(*ends, strict=True))
        if axis not in x.divided_axes:
            if x.mode == "constant" and before == after:  # the convolution itself adds these zeros
                around[axis], further[i] = (0, 0), (before, after)
            continue
        owners, size = x.owners(axis), x.source.shape[axis]
        wanted = windows_of(owners.parts(shape[axis]), sliding(strides[i], before, reaches[i]))
        rows = wanted
        if x.mode == "replicate":
            rows = tuple(span.nearest(size) if span.size else span for span in wanted)
        part = x.source.exchange(axis, rows).fetch(part)
        due, own = wanted[owners.rank], rows[owners.rank]
        missing = min(max(own.lo - due.lo, 0), due.size - own.size)
        around[axis], further[i] = (missing, due.size - own.size - missing), (0, 0)
    if any(map(any, around)) and (part.numel() or x.mode == "constant"):  # others refuse empty tensors
        part = pad_axes(part, around, x.mode)
    return part, further


@handles(divided_functions.conv1d, divided_functions.conv2d, divided_functions.conv3d)
def _convolve_by_mucudnn(
    function: Any, *args: Any, workspace: Any = None, plan: Any = None, numerics: Any = None,
    batch_invariant: Any = None, choice: Any = None, **kwargs: Any,
) -> Divided:  # fmt: skip
    """Return a convolution whose local parts run in mucudnn."""
    promise = promise_of(numerics, batch_invariant, choice)
    divided_functions.check_promise_of_divided(promise)
    engine = {"workspace": spelled(workspace), "plan": handle_of(plan), "promise": str(promise)}
    return _convolve(function, *args, engine=engine, **kwargs)


@handles("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _convolve_transposed(
    function: Any, input: Divided, weight: Tensor, bias: Tensor | None = None, stride: Any = 1,
    padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
) -> Divided:  # fmt: skip
    w, dims = weight, weight.dim() - 2
    x = _check(function, input, w, w.size(0))
    strides, dilations = for_each_axis(stride, dims), for_each_axis(dilation, dims)
    paddings, more = list(for_each_axis(padding, dims)), list(for_each_axis(output_padding, dims))
    exchanges, leads, shape = [], [], [x.shape[0], w.size(1) * groups]
    for i in range(dims):
        axis, span = i + 2, reach(w.size(i + 2), dilations[i])
        if more[i] >= max(strides[i], dilations[i]):
            raise UsageError(f"output padding {more[i]} has to be below the stride or the dilation")
        size = transposed_size(x.shape[axis], paddings[i], strides[i], span, more[i])
        if size < 1:
            raise UsageError(f"axis {axis} of the result of a transposed convolution has {size} rows")
        shape.append(size)
        if axis not in x.divided_axes:
            continue
        exchange = x.exchange_for(axis, size, transposed(strides[i], paddings[i], span))
        exchanges.append(exchange)
        leads.append(x.owners(axis).own(size).lo + paddings[i] - exchange.window.lo * strides[i])
        paddings[i] = more[i] = 0
    local = Local(
        tuple(exchanges), tuple(leads), strides, tuple(paddings), dilations, True, tuple(more), groups,
        local_shape(shape, x.division),
    )  # fmt: skip
    return _apply(x, w, bias, shape, local)


def _apply(
    x: Divided, w: Tensor, bias: Tensor | None, shape: Sequence[int], local: Local, part: Tensor | None = None
) -> Divided:
    part, w, bias = autocast(x.local if part is None else part, w, bias)
    return Divided(_Convolution.apply(part, w, bias, local), shape, x.division)


def _check(function: Any, x: Any, w: Any, channels: int) -> Divided:
    """Return the input. Raises NotInTableError for a division that a convolution cannot use."""
    if not isinstance(w, Tensor) or not isinstance(x, Divided):
        raise refuse(function, "with a divided filter is not in the table")
    if x.dim() != w.dim():
        raise refuse(function, "without an axis of samples is not in the table")
    if 1 in x.divided_axes:
        raise refuse(function, "whose channels are divided is not in the table")
    if x.shape[1] != channels:
        raise UsageError(f"the input has {x.shape[1]} channels, and the filter is for {channels}")
    return x


def _paddings(
    padding: Any, dims: int, strides: Sequence[int], reaches: Sequence[int]
) -> list[tuple[int, int]]:
    if padding == "same":
        if any(stride != 1 for stride in strides):
            raise UsageError("padding='same' needs a stride of 1")
        return [((span - 1) // 2, span - 1 - (span - 1) // 2) for span in reaches]
    sizes = (0,) * dims if padding == "valid" else for_each_axis(padding, dims)
    return [(size, size) for size in sizes]
