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
from mucudnn.torch.parallel.spatial.exchange.messages import move, sum_over
from mucudnn.torch.parallel.spatial.windows import Span, paired, transfers


def run(name: str, *arguments: object) -> Tensor:
    """Run the operator `mucudnn::name`, or let a compiler trace it."""
    if torch.compiler.is_compiling():
        order.prepare_inductor()
    result: Tensor = getattr(torch.ops.mucudnn, name).default(*arguments)
    return result


def _describe(
    kind: str, x: Tensor, axis: int, rows: int, parts: Sequence[int], windows: Sequence[int]
) -> str:
    shape = [*x.shape]
    shape[axis] = rows
    return (
        f"{kind} of axis {axis} of {tuple(shape)}, {str(x.dtype).removeprefix('torch.')}, "
        f"parts {list(parts)}, windows {list(windows)}"
    )


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
    _check_part(x, axis, owners[index].size, "the part of a divided tensor")
    shape = list(x.shape)
    shape[axis] = wanted[index].size
    result = x.new_empty(shape)
    real = wanted[index].meet(Span(0, owners[-1].hi))
    before = real.lo - wanted[index].lo if real.size else wanted[index].size
    result.narrow(axis, 0, before).fill_(fill)
    behind = before + real.size
    result.narrow(axis, behind, shape[axis] - behind).fill_(fill)
    if got[index].size:
        own = x.narrow(axis, got[index].lo - owners[index].lo, got[index].size)
        result.narrow(axis, got[index].lo - wanted[index].lo, got[index].size).copy_(own)
    if not group:
        return result
    arrived = [(peer, rows, _resized(x, axis, rows.size)) for peer, rows in _others(got, index)]
    leaving = [
        (peer, x.narrow(axis, rows.lo - owners[index].lo, rows.size).contiguous())
        for peer, rows in _others(sent, index)
    ]
    description = _describe("window", x, axis, owners[-1].hi, parts, windows)
    move([(peer, values) for peer, _, values in arrived], leaving, x.device, group, description)
    for _, rows, values in arrived:
        result.narrow(axis, rows.lo - wanted[index].lo, rows.size).copy_(values)
    return result


def _window_adjoint(
    g: Tensor, axis: int, parts: Sequence[int], windows: Sequence[int], index: int, group: str
) -> Tensor:
    owned, window = paired(parts)[index], paired(windows)[index]
    shape = list(g.shape)
    shape[axis] = owned.size
    result = g.new_zeros(shape)
    kept = owned.meet(window)
    if kept.size:
        rows = g.narrow(axis, kept.lo - window.lo, kept.size)
        result.narrow(axis, kept.lo - owned.lo, kept.size).copy_(rows)
    _add_others(result, owned.lo, g, axis, parts, windows, index, group)
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
    if not group:
        return
    arrived = [(peer, rows, _resized(g, axis, rows.size)) for peer, rows in _others(sent, index)]
    leaving = [
        (peer, g.narrow(axis, rows.lo - wanted[index].lo, rows.size).contiguous())
        for peer, rows in _others(got, index)
    ]
    description = _describe("gradient", g, axis, owners[-1].hi, parts, windows)
    move([(peer, values) for peer, _, values in arrived], leaving, g.device, group, description)
    for _, rows, values in arrived:  # one order of addition, whatever arrives first
        result.narrow(axis, rows.lo - first, rows.size).add_(values)


def _others(spans: Sequence[Span], index: int) -> list[tuple[int, Span]]:
    return [(peer, span) for peer, span in enumerate(spans) if span.size and peer != index]


def _resized(x: Tensor, axis: int, rows: int) -> Tensor:
    shape = list(x.shape)
    shape[axis] = rows
    return x.new_empty(shape)


def _fake_window(
    x: Tensor, axis: int, parts: Sequence[int], windows: Sequence[int], index: int, fill: float, group: str
) -> Tensor:
    return _resized(x, axis, windows[2 * index + 1] - windows[2 * index])


def _fake_adjoint(
    g: Tensor, axis: int, parts: Sequence[int], windows: Sequence[int], index: int, group: str
) -> Tensor:
    return _resized(g, axis, parts[2 * index + 1] - parts[2 * index])


def _fake_add(
    g: Tensor, axis: int, parts: Sequence[int], windows: Sequence[int], index: int, group: str
) -> None:
    return None


def _save_window(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.given = inputs[1:5], inputs[6]


def _window_gradient(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    given, group = ctx.given
    return (torch.ops.mucudnn.window_adjoint.default(g, *given, group), *(None for _ in range(6)))


def _save_adjoint(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.given = inputs[1:5], inputs[5]


def _adjoint_gradient(ctx: Any, g: Tensor) -> tuple[Any, ...]:
    given, group = ctx.given
    return (torch.ops.mucudnn.window.default(g, *given, 0.0, group), *(None for _ in range(5)))


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
    _window, _fake_window, _save_window, _window_gradient,
)  # fmt: skip
_operator(
    "window_adjoint",
    "(Tensor g, int axis, int[] parts, int[] windows, int index, str group) -> Tensor",
    _window_adjoint, _fake_adjoint, _save_adjoint, _adjoint_gradient,
)  # fmt: skip
_operator(
    "window_add_",
    "(Tensor(a!) g, int axis, int[] parts, int[] windows, int index, str group) -> ()",
    _window_add, _fake_add,
)  # fmt: skip
_operator(
    "spatial_sum", "(Tensor x, str groups) -> Tensor",
    sum_over, lambda x, groups: torch.empty_like(x), _save_sum, _sum_gradient,
)  # fmt: skip

for _name in ("window", "window_adjoint", "spatial_sum"):
    order.register(getattr(torch.ops.mucudnn, _name).default)
