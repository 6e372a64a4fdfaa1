"""Boxes: the rows of each axis of a tensor that a tile needs."""

import math
from collections.abc import Sequence

from torch import Tensor
from torch.fx import Node

from mucudnn.torch.parallel.spatial.windows import Span

Box = tuple[Span, ...]


def shape_of(node: Node) -> tuple[int, ...]:
    """Return the shape of a node's result."""
    return tuple(node.meta["val"].shape)


def whole(shape: Sequence[int]) -> Box:
    """Return the box of a whole tensor."""
    return tuple(Span(0, rows) for rows in shape)


def all_of(node: Node) -> Box:
    """Return the box of a node's whole result."""
    return whole(shape_of(node))


def sizes(box: Box) -> list[int]:
    """Return the shape of a box."""
    return [span.size for span in box]


def bytes_of(node: Node, box: Box | None = None) -> int:
    """Return the bytes of a node's result, or of a box of it."""
    shape = shape_of(node) if box is None else sizes(box)
    return math.prod(shape) * int(node.meta["val"].element_size())


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
