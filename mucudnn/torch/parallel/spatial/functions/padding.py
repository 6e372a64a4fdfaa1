"""`F.pad` of divided tensors in all modes: constant, reflect, replicate and circular."""

from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.divided import Divided, handles
from mucudnn.torch.parallel.spatial.exchange.exchange import connected_empty
from mucudnn.torch.parallel.spatial.refusing import refuse
from mucudnn.torch.parallel.spatial.windows import EMPTY, Span, with_rows


@handles(F.pad, torch._C._nn.pad)
def _pad(
    function: Any, input: Divided, pad: Any, mode: str = "constant", value: float | None = None
) -> Divided:
    pads = list(pad)
    if len(pads) % 2 or len(pads) > 2 * input.dim():
        raise UsageError(f"padding {tuple(pads)} does not fit {input.dim()} axes")
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise refuse(function, f"with mode {mode!r} is not in the table")
    x, shape = input, list(input.shape)
    for i in range(len(pads) // 2):
        axis, around = input.dim() - 1 - i, (pads[2 * i], pads[2 * i + 1])
        shape[axis] += sum(around)
        if axis in input.divided_axes and any(around):
            x = _padded(x, axis, around, mode, 0.0 if value is None else value)
            pads[2 * i : 2 * i + 2] = 0, 0
    if not any(pads):
        return x
    if x.local.numel() == 0:  # PyTorch refuses to reflect empty tensors
        kept = [n if a in x.divided_axes else shape[a] for a, n in enumerate(x.local.shape)]
        return x.with_local(connected_empty(x.local, kept), shape)
    return x.with_local(F.pad(x.local, pads, mode, value), shape)


def _padded(x: Divided, axis: int, around: tuple[int, int], mode: str, value: float) -> Divided:
    """Return a tensor padded on a divided axis. Raises UsageError."""
    size, owners = x.shape[axis], x.owners(axis)
    padded = size + sum(around)
    longest = {"reflect": size - 1, "circular": size}.get(mode, max(*around, 0))
    if padded < 1 or max(around) > longest or (mode != "constant" and min(around) < 0):
        raise UsageError(f"padding {around} with mode {mode!r} does not fit an axis of {size} rows")
    wanted = [part.moved(-around[0]) if part.size else EMPTY for part in owners.parts(padded)]
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
