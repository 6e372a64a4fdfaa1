"""The shapes of nodes, and the bytes of their results and of boxes of them."""

import math

import torch
from torch.fx import Node

from mucudnn.torch.windows.boxes import Box, sizes, whole


def shape_of(node: Node) -> tuple[int, ...]:
    """Return the shape of a node's result."""
    return tuple(node.meta["val"].shape)


def all_of(node: Node) -> Box:
    """Return the box of a node's whole result."""
    return whole(shape_of(node))


def bytes_of(node: Node, box: Box | None = None) -> int:
    """Return the bytes of a node's result, or of a box of it."""
    shape = shape_of(node) if box is None else sizes(box)
    return math.prod(shape) * int(node.meta["val"].element_size())


def is_view(node: Node) -> bool:
    """Return whether a result lies in the memory of the first input."""
    [first, *_] = node.target._schema.returns
    return first.alias_info is not None or node.target is torch.ops.aten._unsafe_view.default
