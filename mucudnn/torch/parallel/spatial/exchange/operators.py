"""`mucudnn::window`, its adjoint and sums over ranks: operators of PyTorch.

Compilers trace them, and autograd differentiates them to any order. They name a process group by text.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from mucudnn.errors import MucudnnError
from mucudnn.torch.parallel.spatial.exchange import order
from mucudnn.torch.parallel.spatial.exchange.messages import described, move, sum_over
from mucudnn.torch.parallel.spatial.windows import Span, paired, transfers, with_rows


def run(name: str, *arguments: object) -> Tensor:
    """Run the operator `mucudnn::name`, or let a compiler trace it."""
    if torch.compiler.is_compiling():
        order.prepare_inductor()
    result: Tensor = getattr(torch.ops.mucudnn, name).default(*arguments)
    return result


@lru_cache(4096)
def _transfers(
    parts: tuple[int, ...], windows: tuple[int, ...], index: int
) -> tuple[tuple[Span, ...], tuple[Span, ...], list[Span], list[Span]]:
    """Return parts and windows as spans, and the rows that this rank sends to each and receives from each."""
    owners, wanted = paired(parts), paired(windows)
    return owners, wanted, *transfers(owners, wanted, index)


def _check_part(x: Tensor, axis: int, expected: int, what: str) -> None:
    if x.size(axis) != expected:
        raise MucudnnError(f"{what} has {x.size(axis)} rows on axis {axis} and should have {expected}")


def _window(
    x: Tensor, axis: int, parts: Sequence[int], windows: Sequence[int], index: int, fill: float, group: str
) -> Tensor:
    owners, wanted, sent, got = _transfers(tuple(parts), tuple(windows), index)
    part, window = owners[index], wanted[index]
    _check_part(x, axis, part.size, "the part of a divided tensor")
    result = x.new_empty(with_rows(x.shape, axis, window.size))
    real = window.meet(Span(0, owners[-1].hi))
    before = real.lo - window.lo if real.size else window.size
    result.narrow(axis, 0, before).fill_(fill)
    behind = before + real.size
    result.narrow(axis, behind, window.size - behind).fill_(fill)
    if got[index].size:
        own = x.narrow(axis, got[index].lo - part.lo, got[index].size)
        result.narrow(axis, got[index].lo - window.lo, got[index].size).copy_(own)
    if group:
        kind = "window", owners[-1].hi, parts, windows
        for rows, values in _swap(x, part.lo, axis, sent, got, index, group, kind):
            result.narrow(axis, rows.lo - window.lo, rows.size).copy_(values)
    return result


def _window_adjoint(
    g: Tensor, axis: int, parts: Sequence[int], windows: Sequence[int], index: int, group: str
) -> Tensor:
    owners, wanted, _, _ = _transfers(tuple(parts), tuple(windows), index)
    part, window = owners[index], wanted[index]
    result = g.new_zeros(with_rows(g.shape, axis, part.size))
    kept = part.meet(window)
    if kept.size:
        rows = g.narrow(axis, kept.lo - window.lo, kept.size)
        result.narrow(axis, kept.lo - part.lo, kept.size).copy_(rows)
    _add_others(result, part.lo, g, axis, parts, windows, index, group)
    return result


def _window_add(
    g: Tensor, axis: int, parts: Sequence[int], windows: Sequence[int], index: int, group: str
) -> None:
    _add_others(g, windows[2 * index], g, axis, parts, windows, index, group)


def _add_others(
    result: Tensor,
    first: int,
    g: Tensor,
    axis: int,
    parts: Sequence[int],
    windows: Sequence[int],
    index: int,
    group: str,
) -> None:
    """Add the other ranks' values for this rank's rows to a tensor that begins at the row `first`."""
    owners, wanted, sent, got = _transfers(tuple(parts), tuple(windows), index)
    _check_part(g, axis, wanted[index].size, "the gradient of a window")
    if group:
        kind = "gradient", owners[-1].hi, parts, windows
        # The order of the additions does not depend on which rows arrive first.
        for rows, values in _swap(g, wanted[index].lo, axis, got, sent, index, group, kind):
            result.narrow(axis, rows.lo - first, rows.size).add_(values)


def _swap(
    x: Tensor,
    first: int,
    axis: int,
    leaving: Sequence[Span],
    arriving: Sequence[Span],
    index: int,
    group: str,
    kind: tuple[str, int, Sequence[int], Sequence[int]],
) -> list[tuple[Span, Tensor]]:
    """Send rows of a tensor, which begins at the row `first`, to other ranks, and return the rows of these.

    `kind` has the name of the operator, the size of the whole axis, and parts and windows, for messages.
    """
    received = [
        (peer, x.new_empty(with_rows(x.shape, axis, rows.size))) for peer, rows in _others(arriving, index)
    ]
    sent = [
        (peer, x.narrow(axis, rows.lo - first, rows.size).contiguous())
        for peer, rows in _others(leaving, index)
    ]
    name, size, parts, windows = kind
    move(
        received, sent, x.device, group,
        f"{name} of axis {axis} of {described(with_rows(x.shape, axis, size), x.dtype)}, "
        f"parts {list(parts)}, windows {list(windows)}",
    )  # fmt: skip
    return [(arriving[peer], values) for peer, values in received]


def _others(spans: Sequence[Span], index: int) -> list[tuple[int, Span]]:
    return [(peer, span) for peer, span in enumerate(spans) if span.size and peer != index]


def _fake_window(
    x: Tensor, axis: int, parts: Sequence[int], windows: Sequence[int], index: int, *_: Any
) -> Tensor:
    return x.new_empty(with_rows(x.shape, axis, windows[2 * index + 1] - windows[2 * index]))


def _fake_adjoint(
    g: Tensor, axis: int, parts: Sequence[int], windows: Sequence[int], index: int, *_: Any
) -> Tensor:
    return g.new_empty(with_rows(g.shape, axis, parts[2 * index + 1] - parts[2 * index]))


def _save_exchange(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.exchange, ctx.group = inputs[1:5], inputs[-1]


def _window_gradient(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    return (torch.ops.mucudnn.window_adjoint.default(g, *ctx.exchange, ctx.group), *(None for _ in range(6)))


def _adjoint_gradient(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    return (torch.ops.mucudnn.window.default(g, *ctx.exchange, 0.0, ctx.group), *(None for _ in range(5)))


def _save_sum(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.groups = inputs[1]


def _sum_gradient(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    return torch.ops.mucudnn.spatial_sum.default(g, ctx.groups), None


_library = torch.library.Library("mucudnn", "FRAGMENT")


def _operator(name: str, schema: str, run: Any, fake: Any, save: Any = None, gradient: Any = None) -> None:
    _library.define(f"{name}{schema}", tags=torch.Tag.pt2_compliant_tag)
    _library.impl(name, run, "CompositeExplicitAutograd")
    torch.library.register_fake(f"mucudnn::{name}", fake, lib=_library)
    if gradient is not None:
        torch.library.register_autograd(f"mucudnn::{name}", gradient, setup_context=save, lib=_library)


_operator(
    "window",
    "(Tensor x, int axis, int[] parts, int[] windows, int index, float fill, str group) -> Tensor",
    _window, _fake_window, _save_exchange, _window_gradient,
)  # fmt: skip
_operator(
    "window_adjoint",
    "(Tensor g, int axis, int[] parts, int[] windows, int index, str group) -> Tensor",
    _window_adjoint, _fake_adjoint, _save_exchange, _adjoint_gradient,
)  # fmt: skip
_operator(
    "window_add_",
    "(Tensor(a!) g, int axis, int[] parts, int[] windows, int index, str group) -> ()",
    _window_add, lambda *_: None,
)  # fmt: skip
_operator(
    "spatial_sum", "(Tensor x, str groups) -> Tensor",
    sum_over, lambda x, groups: torch.empty_like(x), _save_sum, _sum_gradient,
)  # fmt: skip

for _name in ("window", "window_adjoint", "spatial_sum"):
    order.register(getattr(torch.ops.mucudnn, _name).default)
