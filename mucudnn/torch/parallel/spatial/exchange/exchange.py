"""The exchange of rows: fetch the window of an axis from all its owners, and give it back; sums over ranks.

The operators behind it are in `operators`. Ranks that disagree all raise an error: see `watching`.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from mucudnn.torch.parallel.spatial.exchange import operators
from mucudnn.torch.windows.spans import Pieces, Span, flattened, parts, pieces, with_rows


class Owners(NamedTuple):
    """The ranks that share an axis: their group, this rank's place in it, and their number.

    `name` is the dimension of the mesh that divides the axis. An axis without a group ("") has a single
    owner, and nothing is sent.
    """

    group: str
    rank: int
    ranks: int
    name: str

    def parts(self, size: int) -> tuple[Span, ...]:
        """Return the rows of an axis that each owner has."""
        return parts(size, self.ranks)

    def own(self, size: int) -> Span:
        """Return the rows of an axis that this rank has."""
        return self.parts(size)[self.rank]

    def cut(self, x: Tensor, axis: int) -> Tensor:
        """Return this rank's rows of a tensor that has all rows of an axis."""
        own = self.own(x.size(axis))
        return x.narrow(axis, own.lo, own.size)


ALONE = Owners("", 0, 1, "")


class Exchange(NamedTuple):
    """An exchange of rows along an axis: the rows that each rank has, and the window that it needs."""

    axis: int
    parts: tuple[Span, ...]
    windows: tuple[Span, ...]
    owners: Owners

    @classmethod
    def of_all_rows(cls, axis: int, size: int, owners: Owners) -> "Exchange":
        """Return the exchange after which every rank has the whole axis."""
        return cls(axis, owners.parts(size), (Span(0, size),) * owners.ranks, owners)

    @property
    def window(self) -> Span:
        """The rows that this rank needs."""
        return self.windows[self.owners.rank]

    @property
    def is_local(self) -> bool:
        """True if no rank needs a row that it does not have."""
        pairs = zip(self.parts, self.windows, strict=True)
        return all(part == window or not (part.size or window.size) for part, window in pairs)

    @property
    def pieces(self) -> Pieces:
        """The sections of this rank's window."""
        return pieces(self.window, self.parts, self.owners.rank)

    def fetch(self, x: Tensor, fill: float = 0.0) -> Tensor:
        """Return this rank's window of a tensor, `x` with the rank's own rows. Raises DivergedError.

        `fill` stands in the rows outside the tensor. The result is `x` itself if the exchange is local.
        """
        if self.is_local:
            return x
        return operators.run(
            "window", x, self.axis, flattened(self.parts), flattened(self.windows), self.owners.rank, fill,
            self.owners.group,
        )  # fmt: skip

    def give_back(self, g: Tensor) -> Tensor:
        """Return the adjoint of `fetch`: each row's owner gets the sum of all ranks' values for that row.

        `g` is overwritten, except in compiled code, because compilers keep the order of functional operators
        only. If the window has all rows of the part, the result is a view of `g`, to which only the rows of
        other ranks are added.
        """
        if self.is_local:
            return g
        own, window = self.parts[self.owners.rank], self.window
        arguments = (
            self.axis, flattened(self.parts), flattened(self.windows), self.owners.rank, self.owners.group
        )  # fmt: skip
        if own.size and own.meet(window) == own and not torch.compiler.is_compiling():
            torch.ops.mucudnn.window_add_.default(g, *arguments)
            return g.narrow(self.axis, own.lo - window.lo, own.size)
        return operators.run("window_adjoint", g, *arguments)

    def received(self, window: Tensor) -> tuple[Tensor, Tensor]:
        """Return copies of a window's rows that came from other ranks, before and after the own rows."""
        sections = self.pieces
        first = sections.filled_before
        second = first + sections.received_before + sections.own
        return (
            window.narrow(self.axis, first, sections.received_before).clone(),
            window.narrow(self.axis, second, sections.received_after).clone(),
        )

    def rebuild(self, x: Tensor, before: Tensor, after: Tensor) -> Tensor:
        """Return a window filled with zeros from `x` and what `received` returned, without communication."""
        sections = self.pieces
        own = x.narrow(self.axis, sections.own_lo, sections.own)
        filled = [
            x.new_zeros(with_rows(x.shape, self.axis, rows))
            for rows in (sections.filled_before, sections.filled_after)
        ]
        kept = [rows for rows in (filled[0], before, own, after, filled[1]) if rows.size(self.axis)]
        return torch.cat(kept, self.axis) if len(kept) > 1 else kept[0] if kept else own


def add_up(x: Tensor, groups: Sequence[str]) -> Tensor:
    """Return the sum of a tensor over the ranks of each group, one group after the other.

    Its adjoint is the same sum. Raises DivergedError.
    """
    named = [group for group in groups if group]
    if not named:
        return x
    return operators.run("spatial_sum", x, ",".join(named))


def connected_empty(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return an empty tensor of this shape that autograd follows back to `x`.

    A rank without rows must still take part in the communication of the backward pass.
    """
    return x.new_zeros(shape) + x.sum()
