"""Rules of operators that move rows and compute nothing."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import Node

from mucudnn.torch.streaming.nodes import shape_of
from mucudnn.torch.streaming.rules import Step, arguments, rule
from mucudnn.torch.windows.boxes import Box, aligned, sizes
from mucudnn.torch.windows.spans import Span


@rule("cat")
def _cat(node: Node, box: Box) -> Step:
    given = arguments(node)
    axis, inputs, begin = given["dim"] % len(box), list[tuple[Node, Box]](), 0
    for x in given["tensors"]:
        rows = shape_of(x)[axis]
        part = box[axis].meet(Span(begin, begin + rows))
        if part.size:
            inputs.append((x, (*box[:axis], part.moved(-begin), *box[axis + 1 :])))
        begin += rows
    return Step(inputs, lambda *tiles: torch.cat(tiles, axis) if len(tiles) > 1 else tiles[0])


@rule("slice.Tensor")
def _slice(node: Node, box: Box) -> Step:
    given = arguments(node)
    axis, every = given["dim"] % len(box), given["step"]
    start, _, _ = slice(given["start"], None).indices(shape_of(given["self"])[axis])
    out, need = box[axis], list(box)
    need[axis] = Span(start + out.lo * every, start + (out.hi - 1) * every + 1)

    rows = (*(slice(None),) * axis, slice(None, None, every))
    return Step([(given["self"], tuple(need))], lambda x: x[rows])


@rule("select.int")
def _select(node: Node, box: Box) -> Step:
    given = arguments(node)
    shape = shape_of(given["self"])
    axis = given["dim"] % len(shape)
    row = given["index"] % shape[axis]
    need = (*box[:axis], Span(row, row + 1), *box[axis:])
    return Step([(given["self"], need)], lambda x: x.select(axis, 0))


@rule("permute", "transpose.int")
def _permute(node: Node, box: Box) -> Step:
    given = arguments(node)
    order = list(range(len(box)))
    if "dims" in given:
        order = [axis % len(box) for axis in given["dims"]]
    else:
        first, second = given["dim0"], given["dim1"]
        order[first], order[second] = order[second], order[first]
    need = tuple(box[order.index(axis)] for axis in range(len(box)))
    return Step([(given["self"], need)], lambda x: x.permute(order))


@rule("expand")
def _expand(node: Node, box: Box) -> Step:
    [x] = node.all_input_nodes
    return Step([(x, aligned(shape_of(x), box))], lambda x: x.expand(sizes(box)))


@rule("view", "_unsafe_view", "unsqueeze", "squeeze", "squeeze.dim", "squeeze.dims")
def _view(node: Node, box: Box) -> Step:
    """Divide groups of axes with equal products; in a group the rows of the first long axis are divided."""
    x = node.all_input_nodes[0]
    old, new, i, j = shape_of(x), shape_of(node), 0, 0
    need, have = list[Span](), list[Span]()
    skips = list[
        tuple[int, int, int]
    ]()  # the axis in the new order of groups, the elements before, and of the box
    for count_old, count_new in _groups(old, new):
        ins, outs, wanted = old[i : i + count_old], new[j : j + count_new], box[j : j + count_new]
        i, j = i + count_old, j + count_new
        lead, inner = _leading(outs)
        first, row = _leading(ins)
        flat = Span(wanted[lead].lo * inner, wanted[lead].hi * inner) if outs else Span(0, 1)
        rows = Span(flat.lo // row, -(-flat.hi // row))
        need += [rows if axis == first else Span(0, n) for axis, n in enumerate(ins)]
        have += [wanted[lead] if axis == lead else Span(0, n) for axis, n in enumerate(outs)]
        skips.append((rows.size * row, flat.lo - rows.lo * row, flat.size))

    def run(x: Tensor) -> Tensor:
        x = x.reshape([elements for elements, _, _ in skips])
        for group, (elements, skip, size) in enumerate(skips):
            x = x if size == elements else x.narrow(group, skip, size)
        return x.reshape(sizes(tuple(have)))

    return Step([(x, tuple(need))], run, tuple(have))


def _groups(old: Sequence[int], new: Sequence[int]) -> list[tuple[int, int]]:
    """Return the numbers of old and of new axes in each group of axes with equal products."""
    groups, i, j = list[tuple[int, int]](), 0, 0
    while i < len(old) or j < len(new):
        begin, first, second = (i, j), 1, 1
        if i < len(old):
            first, i = old[i], i + 1
        if j < len(new):
            second, j = new[j], j + 1
        while first != second:
            if first < second:
                first, i = first * old[i], i + 1
            else:
                second, j = second * new[j], j + 1
        groups.append((i - begin[0], j - begin[1]))
    return groups


def _leading(shape: Sequence[int]) -> tuple[int, int]:
    """Return the first axis that is longer than one, and the elements of one of its rows."""
    lead = next((axis for axis, rows in enumerate(shape) if rows > 1), 0)
    return lead, math.prod(shape[lead + 1 :])
