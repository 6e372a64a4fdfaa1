"""Convolutions of divided tensors: fetch the window, convolve it unpadded, save only received rows.

Padding of a divided axis is part of the window, so a layer has at most two local problems: that of most
ranks and that of the last. A local convolution runs in mucudnn if the module is converted or the function is
mucudnn's, and in PyTorch otherwise.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.errors import UsageError
from mucudnn.torch.layers import functional as divided_functions
from mucudnn.torch.operators.operands import Operands, autocast, prepare_operands, spelled
from mucudnn.torch.operators.options import Options, handle_of
from mucudnn.torch.operators.passes import can_divide
from mucudnn.torch.parallel.spatial.divided import Divided, handles, local_shape
from mucudnn.torch.parallel.spatial.exchange.exchange import (
    Owners,
    fetch,
    give_back,
    nothing,
    pieces_of,
    rebuild,
    received,
)
from mucudnn.torch.parallel.spatial.windows import (
    Span,
    convolved_size,
    is_local,
    parts,
    reach,
    sliding,
    transposed,
    transposed_size,
    windows_of,
)

Ints = Sequence[int]


class Axis(NamedTuple):
    """The window of one axis: all ranks' parts and windows, and the rows to crop from the local result."""

    axis: int
    parts: tuple[Span, ...]
    windows: tuple[Span, ...]
    owners: Owners
    lead: int


class Local(NamedTuple):
    """A convolution within a rank, on its windows: the arguments of PyTorch's operator, and the local result.

    `engine` has the options of mucudnn's operators, or None for PyTorch's own.
    """

    axes: tuple[Axis, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    output_padding: tuple[int, ...]
    groups: int
    result: tuple[int, ...]
    workspace: str | None
    plan: str | None
    by_mucudnn: bool
    same: bool

    @property
    def is_empty(self) -> bool:
        """True if this rank has no element of the result."""
        return 0 in self.result


class _Convolution(torch.autograd.Function):
    """A convolution of the rank's part. It saves the part, the received rows and the filter."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, bias: Tensor | None, local: Local) -> Tensor:
        """Return this rank's part of the result."""
        ctx.local, ctx.has_bias = local, bias is not None
        kept: list[Tensor] = []
        window = x
        for one in local.axes:
            wider = fetch(window, one.axis, one.parts, one.windows, one.owners)
            if wider is not window:
                kept += received(wider, one.axis, pieces_of(one.parts, one.windows, one.owners.rank))
            window = wider
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
        window, shapes = x, []
        for one in local.axes:
            shapes.append(window.shape)
            found = pieces_of(one.parts, one.windows, one.owners.rank)
            if not is_local(one.parts, one.windows):
                before, after, *kept = kept
                if need_w:
                    window = rebuild(window, one.axis, found, before, after)
                else:  # the values are not needed, only the shape
                    window = _of_length(window, one.axis, one.windows[one.owners.rank].size)
        if local.is_empty:
            dx = nothing(g, window.shape) if need_x else None
            dw = torch.zeros_like(w) if need_w else None
            dbias = w.new_zeros(g.size(1)) if need_bias else None
        else:
            dx, dw, dbias = _gradients(
                window, w, _uncropped(g, window, w, local), local, (need_x, need_w, need_bias)
            )
        if dx is not None:
            for one in reversed(local.axes):
                dx = give_back(dx, one.axis, one.parts, one.windows, one.owners)
        return dx, dw, dbias, None


def _of_length(x: Tensor, axis: int, rows: int) -> Tensor:
    shape = list(x.shape)
    shape[axis] = rows
    return x.new_empty(1).expand(shape)


def _engine(x: Tensor, w: Tensor, bias: Tensor | None, local: Local) -> Operands | None:
    """Return the arguments of mucudnn's operator, or None if PyTorch's own convolution has to run."""
    if local.transposed or not local.by_mucudnn or not can_divide(x, w):
        return None
    dims = len(local.stride)
    return prepare_operands(
        dims, x, w, bias, local.stride, local.padding, local.dilation, local.groups,
        workspace=local.workspace, plan=local.plan, fallback=True,
    )  # fmt: skip


def _run(window: Tensor, w: Tensor, bias: Tensor | None, local: Local) -> Tensor:
    if local.same:
        return _row_by_row(window, w, bias, local, [one.axis for one in local.axes])
    found = _engine(window, w, bias, local)
    if found is not None:
        result: Tensor = torch.ops.mucudnn.convolution_forward.default(
            found.x, found.w, found.bias, *found.options
        )
        return result
    return torch.ops.aten.convolution.default(window, w, bias, *_arguments(local))


def _row_by_row(window: Tensor, w: Tensor, bias: Tensor | None, local: Local, axes: list[int]) -> Tensor:
    """Return the convolution with one problem for each row of the axes.

    All these problems are equal, so PyTorch computes each by the same algorithm. A row has the same bits
    however many rows the rank has.
    """
    if not axes:
        return torch.ops.aten.convolution.default(window, w, bias, *_arguments(local))
    axis, *rest = axes
    stride, span = local.stride[axis - 2], reach(w.size(axis), local.dilation[axis - 2])
    rows = range(0, local.result[axis] * stride, stride)
    found = [_row_by_row(window.narrow(axis, row, span), w, bias, local, rest) for row in rows]
    return torch.cat(found, axis)


def _gradients(
    window: Tensor, w: Tensor, g: Tensor, local: Local, needed: tuple[bool, bool, bool]
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    found = _engine(window, w, None, local)
    if found is None:
        return torch.ops.aten.convolution_backward.default(  # type: ignore[no-any-return]  # three tensors
            g, window, w, [w.size(1) * local.groups if local.transposed else w.size(0)], *_arguments(local),
            list(needed),
        )  # fmt: skip
    options: Options = found.options
    operators = torch.ops.mucudnn
    g = g.contiguous() if not options.channels_last else g
    return (
        operators.convolution_backward_data.default(g, found.w, list(window.shape), *options)
        if needed[0]
        else None,
        operators.convolution_backward_filter.default(found.x, g, list(w.shape), *options)
        if needed[1]
        else None,
        g.sum([0, *range(2, g.dim())]) if needed[2] else None,
    )


def _arguments(local: Local) -> tuple[Any, ...]:
    """Return the arguments that PyTorch's operators take from stride to groups."""
    return (
        local.stride, local.padding, local.dilation, local.transposed, local.output_padding, local.groups
    )  # fmt: skip


def _cropped(y: Tensor, local: Local) -> Tensor:
    """Return the rows of a transposed convolution that are asked for, as a tensor of their own."""
    cut = y
    for one in local.axes:
        if cut.size(one.axis) != local.result[one.axis]:
            cut = cut.narrow(one.axis, one.lead, local.result[one.axis])
    return y if cut is y else cut.clone(memory_format=torch.contiguous_format)


def _uncropped(g: Tensor, window: Tensor, w: Tensor, local: Local) -> Tensor:
    """Return the gradient with a zero for each row that `_cropped` took away."""
    if not local.transposed:
        return g
    around = [0] * (2 * (g.dim() - 2))
    for one in local.axes:
        i = one.axis - 2
        full = (window.size(one.axis) - 1) * local.stride[i] + reach(w.size(one.axis), local.dilation[i])
        behind = 2 * (g.dim() - 1 - one.axis)
        around[behind : behind + 2] = one.lead, full - one.lead - g.size(one.axis)
    return F.pad(g, around) if any(around) else g


def convolve(
    x: Divided,
    w: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    dilation: Any = 1,
    groups: int = 1,
    *,
    workspace: str | None = None,
    plan: str | None = None,
    by_mucudnn: bool = False,
) -> Divided:
    """Return the convolution of a divided tensor, as PyTorch's functions do. Raises UsageError."""
    dims = w.dim() - 2
    _check(x, w, w.size(1) * groups)
    strides, dilations = _each(stride, dims), _each(dilation, dims)
    paddings = _paddings(
        padding, dims, strides, [reach(k, d) for k, d in zip(w.shape[2:], dilations, strict=True)]
    )
    axes, own_padding, shape = [], [0] * dims, [x.shape[0], w.size(0)]
    for i in range(dims):
        axis, span, before = i + 2, reach(w.size(i + 2), dilations[i]), paddings[i][0]
        size = convolved_size(x.shape[axis], paddings[i], strides[i], span)
        if size < 1:
            raise UsageError(
                f"the padded axis {axis} of {tuple(x.shape)} is shorter than the filter of {tuple(w.shape)}"
            )
        shape.append(size)
        if axis not in x.divided_axes and before == paddings[i][1]:
            own_padding[i] = before
            continue
        axes.append(_axis(x, axis, windows_of(_outputs(x, axis, size), sliding(strides[i], before, span))))
    return _apply(
        x, w, bias, shape,
        Local(
            tuple(axes), strides, tuple(own_padding), dilations, False, (0,) * dims, groups, (), workspace,
            plan, by_mucudnn, x.division.numerics == "same",
        ),
    )  # fmt: skip


def convolve_transposed(
    x: Divided,
    w: Tensor,
    bias: Tensor | None = None,
    stride: Any = 1,
    padding: Any = 0,
    output_padding: Any = 0,
    groups: int = 1,
    dilation: Any = 1,
) -> Divided:
    """Return the transposed convolution of a divided tensor, as PyTorch's functions do. Raises UsageError."""
    dims = w.dim() - 2
    _check(x, w, w.size(0))
    strides, dilations = _each(stride, dims), _each(dilation, dims)
    paddings, more = list(_each(padding, dims)), list(_each(output_padding, dims))
    axes, shape = [], [x.shape[0], w.size(1) * groups]
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
        outputs = _outputs(x, axis, size)
        found = _axis(x, axis, windows_of(outputs, transposed(strides[i], paddings[i], span)))
        index = found.owners.rank
        lead = outputs[index].lo + paddings[i] - found.windows[index].lo * strides[i]
        axes.append(found._replace(lead=lead))
        paddings[i] = more[i] = 0
    return _apply(
        x, w, bias, shape,
        Local(
            tuple(axes), strides, tuple(paddings), dilations, True, tuple(more), groups, (), None, None,
            False, False,
        ),
    )  # fmt: skip


def _apply(x: Divided, w: Tensor, bias: Tensor | None, shape: Ints, local: Local) -> Divided:
    local = local._replace(result=local_shape(shape, x.division))
    given, w, bias = autocast(x.local, w, bias)
    return x.with_local(_Convolution.apply(given, w, bias, local), shape)


def _outputs(x: Divided, axis: int, size: int) -> tuple[Span, ...]:
    return parts(size, x.owners(axis).ranks)


def _axis(x: Divided, axis: int, windows: tuple[Span, ...]) -> Axis:
    return Axis(axis, x.parts(axis), windows, x.owners(axis), 0)


def _check(x: Divided, w: Any, channels: int) -> None:
    if not isinstance(w, Tensor) or not isinstance(x, Divided):
        raise UsageError("a convolution with a divided filter is not possible: only the input may be divided")
    if x.dim() != w.dim():
        raise UsageError(f"a divided input needs its batch axis: it has {x.dim()} axes, the filter {w.dim()}")
    if 1 in x.divided_axes:
        raise UsageError("the axis of the channels is divided: only spatial axes may be")
    if x.shape[1] != channels:
        raise UsageError(f"the input has {x.shape[1]} channels, and the filter is for {channels}")


def _each(value: Any, dims: int) -> tuple[int, ...]:
    sizes = tuple(value) if isinstance(value, Sequence) else (value,)
    if len(sizes) not in (1, dims):
        raise UsageError(f"{value} has {len(sizes)} sizes for {dims} spatial axes")
    return sizes * dims if len(sizes) == 1 else sizes


def _paddings(padding: Any, dims: int, strides: Ints, reaches: Ints) -> list[tuple[int, int]]:
    if padding == "same":
        if any(stride != 1 for stride in strides):
            raise UsageError("padding='same' needs a stride of 1")
        return [((span - 1) // 2, span - 1 - (span - 1) // 2) for span in reaches]
    sizes = (0,) * dims if padding == "valid" else _each(padding, dims)
    return [(size, size) for size in sizes]


@handles(torch.conv1d, torch.conv2d, torch.conv3d)
def _stock(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return convolve(*_named(args, kwargs), **kwargs)


@handles(torch.conv_transpose1d, torch.conv_transpose2d, torch.conv_transpose3d)
def _stock_transposed(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return convolve_transposed(*_named(args, kwargs), **kwargs)


@handles(divided_functions.conv1d, divided_functions.conv2d, divided_functions.conv3d)
def _by_mucudnn(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run a convolution whose local parts go through mucudnn."""
    given = dict(kwargs)
    given["workspace"] = spelled(given.get("workspace"))
    given["plan"] = handle_of(given.get("plan"))
    return convolve(*_named(args, given), **given, by_mucudnn=True)


def _named(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
    """Return the positional arguments; input and weight may have come by name."""
    names = ("input", "weight")[len(args) :]
    return (*args, *(kwargs.pop(name) for name in names))
