"""`mucudnn::window`, its adjoint and sums over ranks: operators of PyTorch.

Compilers trace them, and autograd differentiates them to any order. They name a process group by text.

Each rank compiles a graph of its own, and all must exchange in the order of the program. Compilers also drop
an operator without a used result, but a rank without rows has to send its messages.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._higher_order_ops.effects import _EffectType, _register_effectful_op

from mucudnn.errors import MucudnnError
from mucudnn.forks import no_fork
from mucudnn.torch.parallel.spatial.exchange.messages import described, move, sum_over
from mucudnn.torch.windows.spans import Span, paired, pieces, transfers, with_rows


def run(name: str, *arguments: object) -> Tensor:
    """Run the operator `mucudnn::name`, or let a compiler trace it."""
    if torch.compiler.is_compiling():
        _prepare_inductor()
    result: Tensor = getattr(torch.ops.mucudnn, name).default(*arguments)
    return result


@torch.compiler.assume_constant_result  # runs while a function that calls it is traced
def _prepare_inductor() -> None:
    """Let Inductor's scheduler keep the order of exchanges.

    PyTorch 2.13 notes an operation's predecessor under the name of the operation's buffer and looks for it
    under the name of the operation, so Inductor's passes for peak memory and fusion see no order. PyTorch
    2.15 notes it under the right name, in another table.
    """
    with no_fork:  # imported late, because it loads slowly and only compiled models need it
        from torch._inductor.lowering import fallback_handler, lowerings
        from torch._inductor.virtualized import V

    def after_the_last(operator: Any) -> Any:
        lower = fallback_handler(operator, add_to_fallback_set=False)

        def lower_in_order(*arguments: Any) -> Any:
            begin, last = len(V.graph.operations), V.graph.effectful_ops.get(_EffectType.ORDERED)
            result = lower(*arguments)
            predecessors = getattr(V.graph, "additional_star_deps", None)
            if predecessors is not None and last is not None:
                for operation in V.graph.operations[begin:]:
                    predecessors[operation.get_operation_name()].add(last.get_name())
            return result

        return lower_in_order

    lowerings.update({operator: after_the_last(operator) for operator in _ORDERED})


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


def _window(x: Tensor, *arguments: Any) -> Tensor:
    axis, parts, windows, index, fill, group = arguments
    owners, wanted, sent, got = _transfers(tuple(parts), tuple(windows), index)
    part, window = owners[index], wanted[index]
    _check_part(x, axis, part.size, "the part of a divided tensor")
    result = x.new_empty(with_rows(x.shape, axis, window.size))
    sections = pieces(window, owners, index)
    result.narrow(axis, 0, sections.filled_before).fill_(fill)
    result.narrow(axis, window.size - sections.filled_after, sections.filled_after).fill_(fill)
    first = sections.filled_before + sections.received_before
    result.narrow(axis, first, sections.own).copy_(x.narrow(axis, sections.own_lo, sections.own))
    where = axis, parts, windows, index, group
    for rows, values in _swap("window", x, part.lo, sent, got, where):
        result.narrow(axis, rows.lo - window.lo, rows.size).copy_(values)
    return result


def _window_adjoint(g: Tensor, *where: Any) -> Tensor:
    axis, parts, windows, index, _ = where
    owners, wanted, _, _ = _transfers(tuple(parts), tuple(windows), index)
    part, window = owners[index], wanted[index]
    result = g.new_zeros(with_rows(g.shape, axis, part.size))
    kept = part.meet(window)
    if kept.size:
        rows = g.narrow(axis, kept.lo - window.lo, kept.size)
        result.narrow(axis, kept.lo - part.lo, kept.size).copy_(rows)
    _add_others(result, part.lo, g, where)
    return result


def _window_add(g: Tensor, *where: Any) -> None:
    _, _, windows, index, _ = where
    _add_others(g, windows[2 * index], g, where)


def _add_others(result: Tensor, first: int, g: Tensor, where: tuple[Any, ...]) -> None:
    """Add the other ranks' values for this rank's rows to a tensor that begins at the row `first`."""
    axis, parts, windows, index, _ = where
    _, wanted, sent, got = _transfers(tuple(parts), tuple(windows), index)
    _check_part(g, axis, wanted[index].size, "the gradient of a window")
    # The order of the additions does not depend on which rows arrive first.
    for rows, values in _swap("gradient", g, wanted[index].lo, got, sent, where):
        result.narrow(axis, rows.lo - first, rows.size).add_(values)


def _swap(
    name: str,
    x: Tensor,
    first: int,
    leaving: Sequence[Span],
    arriving: Sequence[Span],
    where: tuple[Any, ...],
) -> list[tuple[Span, Tensor]]:
    """Send rows of a tensor, which begins at the row `first`, to other ranks, and return the rows of these.

    `where` has the axis, all parts and windows, the rank's place in its group, and the group.
    """
    axis, parts, windows, index, group = where
    if not group:
        return []
    received = [
        (peer, x.new_empty(with_rows(x.shape, axis, rows.size))) for peer, rows in _others(arriving, index)
    ]
    sent = [
        (peer, x.narrow(axis, rows.lo - first, rows.size).contiguous())
        for peer, rows in _others(leaving, index)
    ]
    move(
        received, sent, x.device, group,
        f"{name} of axis {axis} of {described(with_rows(x.shape, axis, parts[-1]), x.dtype)}, "
        f"parts {list(parts)}, windows {list(windows)}",
    )  # fmt: skip
    return [(arriving[peer], values) for peer, values in received]


def _others(spans: Sequence[Span], index: int) -> list[tuple[int, Span]]:
    return [(peer, span) for peer, span in enumerate(spans) if span.size and peer != index]


def _without_values(x: Tensor, axis: int, spans: Sequence[int], index: int) -> Tensor:
    """Return a tensor with as many rows as a rank has among spans, for a compiler."""
    return x.new_empty(with_rows(x.shape, axis, spans[2 * index + 1] - spans[2 * index]))


def _save_exchange(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.exchange, ctx.group = inputs[1:5], inputs[-1]


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
    _window, lambda x, axis, _, windows, index, *others: _without_values(x, axis, windows, index),
    _save_exchange,
    lambda ctx, g: (torch.ops.mucudnn.window_adjoint.default(g, *ctx.exchange, ctx.group), *[None] * 6),
)  # fmt: skip
_operator(
    "window_adjoint",
    "(Tensor g, int axis, int[] parts, int[] windows, int index, str group) -> Tensor",
    _window_adjoint, lambda g, axis, parts, _, index, *others: _without_values(g, axis, parts, index),
    _save_exchange,
    lambda ctx, g: (torch.ops.mucudnn.window.default(g, *ctx.exchange, 0.0, ctx.group), *[None] * 5),
)  # fmt: skip
_operator(
    "window_add_",
    "(Tensor(a!) g, int axis, int[] parts, int[] windows, int index, str group) -> ()",
    _window_add, lambda *_: None,
)  # fmt: skip
_operator(
    "spatial_sum", "(Tensor x, str groups) -> Tensor",
    sum_over, lambda x, groups: torch.empty_like(x), _save_exchange,
    lambda ctx, g: (torch.ops.mucudnn.spatial_sum.default(g, ctx.group), None),
)  # fmt: skip

_ORDERED = [getattr(torch.ops.mucudnn, name).default for name in ("window", "window_adjoint", "spatial_sum")]
for _ordered in _ORDERED:  # so that compilers keep all calls, in their order
    _register_effectful_op(_ordered, _EffectType.ORDERED)
