"""Boxes: a span of rows for each axis of a tensor."""

from collections.abc import Sequence

import torch
from torch import Tensor

from mucudnn.torch.windows.spans import Span

Box = tuple[Span, ...]


def whole(shape: Sequence[int]) -> Box:
    """Return the box of a whole tensor."""
    return tuple(Span(0, rows) for rows in shape)


def sizes(box: Box) -> list[int]:
    """Return the shape of a box."""
    return [span.size for span in box]


def hull(first: Box | None, second: Box) -> Box:
    """Return the smallest box around two."""
    if first is None:
        return second
    return tuple(Span(min(a.lo, b.lo), max(a.hi, b.hi)) for a, b in zip(first, second, strict=True))


def crop(x: Tensor, have: Box, want: Box) -> Tensor:
    """Return the view of a box in a tensor that holds another box."""
    for axis, (own, wanted) in enumerate(zip(have, want, strict=True)):
        if own != wanted:
            x = x.narrow(axis, wanted.lo - own.lo, wanted.size)
    return x


def aligned(shape: Sequence[int], box: Box) -> Box:
    """Return the box of an operand with this shape that is broadcast to the box of a result."""
    behind = box[len(box) - len(shape) :]
    return tuple(Span(0, 1) if rows == 1 else span for rows, span in zip(shape, behind, strict=True))


def places(indices: Tensor, box: Box) -> list[Tensor]:
    """Return the rows, one tensor for each axis, that indices into a flattened box mean.

    An index outside of the box means a row outside of it on the first axis.
    """
    rows: list[Tensor] = []
    for span in reversed(box[1:]):
        rows.insert(0, indices % span.size + span.lo)
        indices = indices // span.size
    return [indices + box[0].lo, *rows]


def indices_of(rows: Sequence[Tensor], box: Box) -> Tensor:
    """Return the indices into a flattened box of the elements at these rows."""
    indices = torch.zeros_like(rows[0])
    for along, span in zip(rows, box, strict=True):
        indices = indices * span.size + along - span.lo
    return indices
