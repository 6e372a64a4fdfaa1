"""`F.pad` of divided tensors in all modes: constant, reflect, replicate and circular.

Zeros and copies of edges are added when a function needs them, because a convolution can add them to the
window that it fetches anyway.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.divided import Divided, handles
from mucudnn.torch.parallel.spatial.exchange.exchange import connected_empty
from mucudnn.torch.parallel.spatial.pending import note
from mucudnn.torch.parallel.spatial.refusing import refuse
from mucudnn.torch.windows.spans import EMPTY, Span, sliding, windows_of, with_rows


class Padded(Divided):
    """A tensor that is padded with zeros or with its edges, and whose part is computed when it is needed.

    Attributes:
        source: the tensor without padding.
        around: for each axis, the rows that are added at its beginning and at its end.
        mode: "constant", for zeros, or "replicate".
    """

    def __init__(
        self, source: Divided, shape: Sequence[int], around: Sequence[tuple[int, int]], mode: str
    ) -> None:
        self.source, self.around, self.mode = source, tuple(around), mode
        self.shape, self.division = torch.Size(shape), source.division
        self._part: Tensor | None = None
        self._version = source.local._version
        note(self)

    def may_join(self, paddings: Sequence[tuple[int, int]]) -> bool:
        """Return whether a convolution with further zeros around can take the source instead of the part."""
        is_pending = self._part is None and self.source.local._version == self._version
        fits = self.mode == "constant" or not any(map(any, paddings))
        return is_pending and fits and not any(map(any, self.around[:2]))

    @property
    def _typed(self) -> Tensor:
        return self.source.local

    @property
    def local(self) -> Tensor:
        """The rank's part, computed at the first use. Raises UsageError if the source has changed."""
        if self._part is None:
            if self.source.local._version != self._version:
                raise UsageError(
                    "a part of a divided tensor has changed in place since it was padded: clone it before"
                )
            self._part = _padded_part(self.source, self.shape, self.around, self.mode, 0.0)
        return self._part


@handles("pad")
def _pad(
    function: Any, input: Divided, pad: Any, mode: str = "constant", value: float | None = None
) -> Divided:
    pads = list(pad)
    if len(pads) % 2 or len(pads) > 2 * input.dim():
        raise UsageError(f"padding {tuple(pads)} does not fit {input.dim()} axes")
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise refuse(function, f"with mode {mode!r} is not in the table")
    around = [(0, 0)] * input.dim()
    for i in range(len(pads) // 2):
        around[-1 - i] = pads[2 * i], pads[2 * i + 1]
    shape = [n + sum(ends) for n, ends in zip(input.shape, around, strict=True)]
    for axis in input.divided_axes:
        _check(input.shape[axis], around[axis], mode)
    is_simple = (mode == "constant" and not value) or mode == "replicate"
    if (
        is_simple
        and min(pads, default=0) >= 0
        and any(any(around[axis]) for axis in input.divided_axes if axis > 1)
        and not torch.compiler.is_compiling()
        and not input._typed.is_inference()
    ):
        return Padded(input, shape, around, mode)
    part = _padded_part(input, shape, around, mode, 0.0 if value is None else value)
    return input.with_local(part, shape)


def _padded_part(
    x: Divided, shape: Sequence[int], around: Sequence[tuple[int, int]], mode: str, value: float
) -> Tensor:
    """Return this rank's part of a padded tensor of this shape."""
    rest = list(around)
    for axis in x.divided_axes:
        if any(around[axis]):
            x = _padded(x, axis, around[axis], mode, value)
            rest[axis] = 0, 0
    if not any(map(any, rest)):
        return x.local
    if x.local.numel() == 0:  # PyTorch refuses to reflect empty tensors
        kept = [n if a in x.divided_axes else shape[a] for a, n in enumerate(x.local.shape)]
        return connected_empty(x.local, kept)
    return pad_axes(x.local, rest, mode, value)


def pad_axes(x: Tensor, around: Sequence[tuple[int, int]], mode: str, value: float = 0.0) -> Tensor:
    """Return a tensor padded by rows around each axis."""
    first = next(axis for axis, ends in enumerate(around) if any(ends))
    if mode != "constant":  # PyTorch then pads all axes behind the channels
        first = min(first, 2)
    return F.pad(x, [rows for ends in reversed(around[first:]) for rows in ends], mode, value)


def _padded(x: Divided, axis: int, around: tuple[int, int], mode: str, value: float) -> Divided:
    """Return a tensor padded on a divided axis."""
    size, owners = x.shape[axis], x.owners(axis)
    padded = size + sum(around)
    wanted = windows_of(owners.parts(padded), sliding(1, around[0], 1))
    shape = with_rows(x.shape, axis, padded)
    if mode == "constant":
        return x.with_local(x.exchange(axis, wanted).fetch(x.local, value), shape)
    sections = []
    for end in ("before", "inside", "behind"):
        rows = x.exchange(axis, [_source(part, size, mode, end) for part in wanted]).fetch(x.local)
        if end != "inside" and mode == "reflect":
            rows = rows.flip(axis)
        if end != "inside" and mode == "replicate":
            count = _outside(wanted[owners.rank], size, end).size
            rows = rows.expand(with_rows(rows.shape, axis, count)) if count else rows
        sections.append(rows)
    return x.with_local(torch.cat(sections, axis), shape)


def _check(size: int, around: tuple[int, int], mode: str) -> None:
    """Raise UsageError for padding that does not fit a divided axis."""
    longest = {"reflect": size - 1, "circular": size}.get(mode, max(*around, 0))
    fits = size + sum(around) >= 1 and max(around) <= longest
    if any(around) and (not fits or (mode != "constant" and min(around) < 0)):
        raise UsageError(f"padding {around} with mode {mode!r} does not fit an axis of {size} rows")


def _outside(part: Span, size: int, end: str) -> Span:
    """Return the rows of a span that lie before row 0, after the last row, or inside."""
    edges = {
        "before": Span(min(part.lo, 0), 0),
        "inside": Span(0, size),
        "behind": Span(size, max(part.hi, size)),
    }
    return part.meet(edges[end]) if part.size else EMPTY


def _source(part: Span, size: int, mode: str, end: str) -> Span:
    """Return the rows of the tensor from which these padded rows are made."""
    rows = _outside(part, size, end)
    if end == "inside" or not rows.size:
        return rows if rows.size else EMPTY
    if mode == "circular":
        return rows.moved(size if end == "before" else -size)
    if mode == "replicate":
        return Span(0, 1) if end == "before" else Span(size - 1, size)
    if end == "before":
        return Span(-rows.hi + 1, -rows.lo + 1)
    return Span(2 * size - 1 - rows.hi, 2 * size - 1 - rows.lo)
