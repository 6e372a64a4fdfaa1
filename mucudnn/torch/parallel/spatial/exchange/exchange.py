"""The one primitive: fetch the window of an axis from all its owners; and sums over ranks.

The operators behind it are in `operators`, and ranks that disagree all raise an error: see `watching`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mucudnn.torch.parallel.spatial.exchange import operators
from mucudnn.torch.parallel.spatial.windows import Pieces, Span, flattened, is_local, pieces


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
    return operators.run(
        "window", x, axis, flattened(parts), flattened(windows), owners.rank, fill, owners.group
    )


def give_back(g: Tensor, axis: int, parts: Sequence[Span], windows: Sequence[Span], owners: Owners) -> Tensor:
    """Return the adjoint of `fetch`: each row's owner gets the sum of all ranks' values for that row.

    `g` is overwritten, unless a compiler traces: it keeps the order of functional operators alone. The result
    is a view of it if the window has all rows of the part, so that only the
    rows of other ranks are added.
    """
    if is_local(parts, windows):
        return g
    own, window = parts[owners.rank], windows[owners.rank]
    if own.size and own.meet(window) == own and not torch.compiler.is_compiling():
        torch.ops.mucudnn.window_add_.default(
            g, axis, flattened(parts), flattened(windows), owners.rank, owners.group
        )
        return g.narrow(axis, own.lo - window.lo, own.size)
    return operators.run(
        "window_adjoint", g, axis, flattened(parts), flattened(windows), owners.rank, owners.group
    )


def add_up(x: Tensor, groups: Sequence[str]) -> Tensor:
    """Return the sum of a tensor over the ranks of each group, one group after the other.

    Its adjoint is the same sum. Raises DivergedError.
    """
    named = [group for group in groups if group]
    if not named:
        return x
    return operators.run("spatial_sum", x, ",".join(named))


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


def rebuild(x: Tensor, axis: int, found: Pieces, before: Tensor, after: Tensor) -> Tensor:
    """Return the window again, without communication."""
    own = x.narrow(axis, found.own_lo, found.own)
    rows = [_zeros(x, axis, found.filled_before), before, own, after, _zeros(x, axis, found.filled_after)]
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


def _zeros(x: Tensor, axis: int, rows: int) -> Tensor:
    shape = list(x.shape)
    shape[axis] = rows
    return x.new_zeros(shape)
