"""Boxes: a span of rows for each axis of a tensor."""

from collections.abc import Sequence

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
