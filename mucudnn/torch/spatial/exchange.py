"""The one primitive: fetch the window of an axis from all its owners; and sums over ranks.

`mucudnn::window` and its adjoint are operators of PyTorch, so compilers trace them and autograd
differentiates them to any order. They name a process group by text. Before rows move, all ranks of the group
compare a digest of what they are about to do. Ranks that disagree all raise the same error.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import _resolve_process_group

from mucudnn.errors import MucudnnError
from mucudnn.torch.spatial.agreement import agree, talks_on_cpu, wait
from mucudnn.torch.spatial.windows import (
    Pieces,
    Span,
    flattened,
    is_local,
    paired,
    pieces,
    transfers,
)


class Owners(NamedTuple):
    """The ranks that share one axis: their group, this rank's place in it, and their number.

    An axis without a group ("") has one owner, and nothing is sent.
    """

    group: str
    rank: int
    ranks: int


ALONE = Owners("", 0, 1)


def fetch(
    x: Tensor, axis: int, parts: Sequence[Span], windows: Sequence[Span], owners: Owners, fill: float = 0.0
) -> Tensor:
    """Return this rank's window of an axis. `x` has the rank's own rows; `parts` are the rows of all ranks.

    `windows` are the windows of all ranks, and `fill` stands in the rows outside the tensor. If no rank needs
    a row that it does not have, the result is `x` itself. Raises DivergedError.
    """
    if is_local(parts, windows):
        return x
    result: Tensor = torch.ops.mucudnn.window.default(
        x, axis, flattened(parts), flattened(windows), owners.rank, fill, owners.group
    )
    return result


def give_back(g: Tensor, axis: int, parts: Sequence[Span], windows: Sequence[Span], owners: Owners) -> Tensor:
    """Return the adjoint of `fetch`: each row's owner gets the sum of all ranks' values for that row.

    `g` is overwritten. The result is a view of it if the window has all rows of the part, so that only the
    rows of other ranks are added.
    """
    if is_local(parts, windows):
        return g
    own, window = parts[owners.rank], windows[owners.rank]
    if own.size and own.meet(window) == own:
        torch.ops.mucudnn.window_add_.default(
            g, axis, flattened(parts), flattened(windows), owners.rank, owners.group
        )
        return g.narrow(axis, own.lo - window.lo, own.size)
    result: Tensor = torch.ops.mucudnn.window_adjoint.default(
        g, axis, flattened(parts), flattened(windows), owners.rank, owners.group
    )
    return result


def add_up(x: Tensor, groups: Sequence[str]) -> Tensor:
    """Return the sum of a tensor over the ranks of each group, one group after the other.

    Its adjoint is the same sum. Raises DivergedError.
    """
    named = [group for group in groups if group]
    if not named:
        return x
    result: Tensor = torch.ops.mucudnn.spatial_sum.default(x, ",".join(named))
    return result


def received(window: Tensor, axis: int, found: Pieces) -> tuple[Tensor, Tensor]:
    """Return copies of the rows of a window that came from other ranks, before and after the own rows.

    With them and the rank's own rows `rebuild` makes the window again.
    """
    first = found.filled_before
    second = first + found.received_before + found.own
    return (
        window.narrow(axis, first, found.received_before).clone(),
        window.narrow(axis, second, found.received_after).clone(),
    )


def rebuild(x: Tensor, axis: int, found: Pieces, before: Tensor, after: Tensor, fill: float = 0.0) -> Tensor:
    """Return the window again, without communication."""
    own = x.narrow(axis, found.own_lo, found.own)
    rows = [_filled(x, axis, found.filled_before, fill), before, own, after]
    rows.append(_filled(x, axis, found.filled_after, fill))
    kept = [piece for piece in rows if piece.size(axis)]
    return torch.cat(kept, axis) if len(kept) > 1 else kept[0] if kept else own


def nothing(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return an empty tensor of this shape that autograd follows back to `x`.

    A rank without rows must still take part in the communication of the backward pass.
    """
    return x.new_zeros(shape) + x.sum()


def pieces_of(parts: Sequence[Span], windows: Sequence[Span], index: int) -> Pieces:
    """Return the sections of this rank's window."""
    return pieces(windows[index], parts, index)


def _filled(x: Tensor, axis: int, rows: int, fill: float) -> Tensor:
    shape = list(x.shape)
    shape[axis] = rows
    return x.new_full(shape, fill)


def _move(messages: list[tuple[str, Tensor, int]], name: str, description: str) -> None:
    """Send and receive contiguous tensors: ("send" or "receive", tensor, rank in the group)."""
    if not messages:
        return
    group = _resolve_process_group(name)
    calls = {"send": dist.isend, "receive": dist.irecv}
    staged = [
        (
            way,
            tensor.cpu() if tensor.is_cuda and talks_on_cpu(group, tensor.device) else tensor,
            tensor,
            peer,
        )
        for way, tensor, peer in messages
    ]
    order = [dist.P2POp(calls[way], sent, group=group, group_peer=peer) for way, sent, _, peer in staged]
    wait(group, name, description, staged[0][1].device, lambda: dist.batch_isend_irecv(order))
    for way, sent, tensor, _ in staged:
        if way == "receive" and sent is not tensor:
            tensor.copy_(sent)


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
    description = _describe("window", x, axis, owners[-1].hi, parts, windows)
    agree(group, description, x.device)
    arrived = [(peer, rows, _resized(x, axis, rows.size)) for peer, rows in _others(got, index)]
    leaving = [
        (peer, x.narrow(axis, rows.lo - owners[index].lo, rows.size).contiguous())
        for peer, rows in _others(sent, index)
    ]
    _move(
        [("receive", rows, peer) for peer, _, rows in arrived]
        + [("send", rows, peer) for peer, rows in leaving],
        group,
        description,
    )
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
    description = _describe("gradient", g, axis, owners[-1].hi, parts, windows)
    agree(group, description, g.device)
    arrived = [(rows, peer, _resized(g, axis, rows.size)) for peer, rows in _others(sent, index)]
    messages = [("receive", values, peer) for _, peer, values in arrived]
    for peer, rows in _others(got, index):
        leaving = g.narrow(axis, rows.lo - wanted[index].lo, rows.size).contiguous()
        messages.append(("send", leaving, peer))
    _move(messages, group, description)
    for rows, _, values in arrived:  # one order of addition, whatever arrives first
        result.narrow(axis, rows.lo - first, rows.size).add_(values)


def _others(spans: Sequence[Span], index: int) -> list[tuple[int, Span]]:
    return [(peer, span) for peer, span in enumerate(spans) if span.size and peer != index]


def _sum(x: Tensor, groups: str) -> Tensor:
    result = x.clone(memory_format=torch.contiguous_format)
    for name in groups.split(","):
        group = _resolve_process_group(name)
        description = f"sum of {tuple(x.shape)}, {str(x.dtype).removeprefix('torch.')}"
        agree(name, description, x.device)
        moved = result.cpu() if x.is_cuda and talks_on_cpu(group, x.device) else result
        wait(
            group, name, description, moved.device,
            lambda moved=moved, group=group: dist.all_reduce(moved, group=group, async_op=True),
        )  # fmt: skip
        if moved is not result:
            result.copy_(moved)
    return result


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
    _sum, lambda x, groups: torch.empty_like(x), _save_sum, _sum_gradient,
)  # fmt: skip
