"""`F.pad` of divided tensors: constants, reflections, the border repeated, and the other end of the axis."""

from typing import Any

import torch
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.errors import UsageError
from mucudnn.torch.parallel.spatial.divided import Divided, handles
from mucudnn.torch.parallel.spatial.exchange.exchange import fetch, nothing
from mucudnn.torch.parallel.spatial.refusing import refuse
from mucudnn.torch.parallel.spatial.windows import EMPTY, Span, parts


@handles(F.pad, torch._C._nn.pad)
def _pad(function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    def call(input: Divided, pad: Any, mode: str = "constant", value: float | None = None) -> Divided:
        pads = list(pad)
        if len(pads) % 2 or len(pads) > 2 * input.dim():
            raise UsageError(f"padding {tuple(pads)} does not fit {input.dim()} axes")
        if mode not in ("constant", "reflect", "replicate", "circular"):
            raise refuse(function, f"with mode {mode!r} is not in the table")
        x, local_pads = input, list(pads)
        for i in range(len(pads) // 2):
            axis = input.dim() - 1 - i
            around = pads[2 * i], pads[2 * i + 1]
            if axis in input.divided_axes and any(around):
                x = _padded(x, axis, around, mode, 0.0 if value is None else value)
                local_pads[2 * i : 2 * i + 2] = 0, 0
        if not any(local_pads):
            return x
        shape = list(x.shape)
        for i in range(len(pads) // 2):
            shape[x.dim() - 1 - i] += local_pads[2 * i] + local_pads[2 * i + 1]
        if x.local.numel() == 0:  # PyTorch refuses to reflect empty tensors
            kept = [n if a in x.divided_axes else shape[a] for a, n in enumerate(x.local.shape)]
            return x.with_local(nothing(x.local, kept), shape)
        return x.with_local(F.pad(x.local, local_pads, mode, value), shape)

    return call(*args, **kwargs)


def _padded(x: Divided, axis: int, around: tuple[int, int], mode: str, value: float) -> Divided:
    """Return a tensor padded on one divided axis. Raises UsageError."""
    size, owners = x.shape[axis], x.owners(axis)
    padded = size + sum(around)
    longest = {"reflect": size - 1, "circular": size}.get(mode, max(*around, 0))
    if padded < 1 or max(around) > longest or (mode != "constant" and min(around) < 0):
        raise UsageError(f"padding {around} with mode {mode!r} does not fit an axis of {size} rows")
    wanted = [part.moved(-around[0]) if part.size else EMPTY for part in parts(padded, owners.ranks)]
    shape = [*x.shape[:axis], padded, *x.shape[axis + 1 :]]
    if mode == "constant":
        return x.with_local(fetch(x.local, axis, x.parts(axis), wanted, owners, value), shape)
    found = []
    for end in ("before", "inside", "behind"):
        windows = [_source(part, size, mode, end) for part in wanted]
        rows = fetch(x.local, axis, x.parts(axis), windows, owners)
        mine = wanted[owners.rank]
        if end != "inside" and mode == "reflect":
            rows = rows.flip(axis)
        if end != "inside" and mode == "replicate":
            count = _outside(mine, size, end).size
            rows = (
                rows.expand([count if a == axis else n for a, n in enumerate(rows.shape)]) if count else rows
            )
        found.append(rows)
    return x.with_local(torch.cat(found, axis), shape)


def _outside(part: Span, size: int, end: str) -> Span:
    """Return the rows of a span that lie before row 0, behind the last row, or inside."""
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
