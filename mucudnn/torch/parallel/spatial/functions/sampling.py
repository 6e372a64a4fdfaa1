"""`F.grid_sample` of divided tensors, as spatial transformers, registration and optical flow call it.

The result is divided as the image. Each rank finds the rows that its positions read, all ranks learn of these
rows, and each of them fetches its window. Positions are computed in the whole image as PyTorch computes them,
also beyond its edges, and then moved into the window.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812 (PyTorch's own name for it)

from mucudnn.torch.parallel.spatial.border import redistribute, shared
from mucudnn.torch.parallel.spatial.divided import Divided, handles
from mucudnn.torch.parallel.spatial.exchange.exchange import Owners, connected_empty
from mucudnn.torch.parallel.spatial.exchange.sharing import from_each
from mucudnn.torch.parallel.spatial.refusing import refuse
from mucudnn.torch.windows.spans import EMPTY, Span


@handles(F.grid_sample)
def _grid_sample(
    function: Any, input: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros",
    align_corners: bool | None = None,
) -> Divided:  # fmt: skip
    options = {"mode": mode, "padding_mode": padding_mode, "align_corners": bool(align_corners)}
    if input.dim() != grid.dim():
        raise refuse(function, f"of {input.dim()} axes with a grid of {grid.dim()} is not in the table")
    if not isinstance(input, Divided):
        return _of_whole(function, input, grid, options)
    division = input.division
    if 1 in input.divided_axes or mode == "bicubic":
        raise refuse(function, "with divided channels or mode 'bicubic' is not in the table")
    if torch.compiler.is_compiling() or input._typed.is_meta:
        raise refuse(function, "whose positions are not known yet is not in the table")
    own_grid = redistribute(grid, division.on_axes([max(axis - 1, 0) for axis in input.divided_axes])).local
    coordinates = list(own_grid.unbind(-1))  # the last axis of the image comes first
    divided = [(axis, owners) for axis, owners in division.axes if axis > 1 and owners.group]
    for axis, _ in divided:
        at = input.dim() - 1 - axis
        coordinates[at] = _to_rows(coordinates[at], input.shape[axis], options)
    positions = [coordinates[input.dim() - 1 - axis] for axis, _ in divided]
    window = input.local
    for (axis, _), rows_read in zip(divided, _windows(function, positions, divided), strict=True):
        exchange = input.exchange(axis, rows_read)
        window = exchange.fetch(window)
        at, rows = input.dim() - 1 - axis, max(exchange.window.size, 2)
        position = coordinates[at] - exchange.window.lo
        scale = (2 * position) / (rows - 1) if align_corners else (2 * position + 1) / rows
        coordinates[at] = scale - 1
    shape = [*input.shape[:2], *grid.shape[1:-1]]
    if own_grid.numel():
        local = F.grid_sample(window, torch.stack(coordinates, -1), **options)  # type: ignore[arg-type]
    else:
        local = connected_empty(window, [*window.shape[:2], *own_grid.shape[1:-1]]) + own_grid.sum()
    return input.with_local(local, shape)


def _of_whole(function: Any, image: Tensor, grid: Divided, options: dict[str, Any]) -> Divided:
    """Return the part of a whole image's samples at the positions that this rank has."""
    if not all(0 < axis < grid.dim() - 1 for axis in grid.divided_axes):
        raise refuse(function, "with this grid is not in the table")
    division = grid.division.on_axes([axis + 1 for axis in grid.divided_axes])
    whole, shape = shared(image, division), [*image.shape[:2], *grid.shape[1:-1]]
    return Divided(F.grid_sample(whole, grid.local, **options), shape, division)


def _to_rows(coordinate: Tensor, size: int, options: dict[str, Any]) -> Tensor:
    """Return the rows that coordinates from −1 to 1 mean, within the image or less than a row beside it.

    At an edge that stops a position, its gradient is zero, as in PyTorch.
    """
    align, padding = options["align_corners"], options["padding_mode"]
    position = (coordinate + 1) / 2 * (size - 1) if align else ((coordinate + 1) * size - 1) / 2
    if padding == "reflection":
        position = _reflect(position, 0.0 if align else -0.5, size - 1.0 if align else size - 0.5)
    if padding == "zeros":
        position = position.clamp(-1, size)
    else:
        inside = (position > 0) & (position < size - 1)
        position = torch.where(inside, position, position.detach().clamp(0, size - 1))
    return position.round() if options["mode"] == "nearest" else position


def _reflect(position: Tensor, low: float, high: float) -> Tensor:
    """Return positions that are reflected at both ends until they lie between them."""
    span = high - low
    if not span:
        return torch.zeros_like(position)
    distance = (position - low).abs()
    beyond = torch.fmod(distance, span)
    is_odd = torch.floor(distance / span) % 2 == 1
    return torch.where(is_odd, span - beyond, beyond) + low


def _windows(function: Any, positions: list[Tensor], divided: list[tuple[int, Owners]]) -> list[list[Span]]:
    """Return the rows of each divided axis that each of its parts needs.

    All ranks with the same part of an axis get the same rows: those that any of them reads.
    """
    ends = [
        torch.stack([p.min(), p.max()]) if p.numel() else p.new_tensor([torch.inf, -torch.inf])
        for p in (position.detach().double() for position in positions)
    ]
    if not ends:
        return []
    table = from_each(torch.stack(ends).flatten(), tuple(owners.group for _, owners in divided))
    if table.isnan().any():
        raise refuse(function, "at positions that are not numbers is not in the table")
    table = table.view(*(owners.ranks for _, owners in divided), len(ends), 2)
    windows = []
    for place, (_, owners) in enumerate(divided):
        lows, highs = table.select(-2, place).movedim(place, 0).reshape(owners.ranks, -1, 2).unbind(-1)
        pairs = zip(lows.amin(1).tolist(), highs.amax(1).tolist(), strict=True)
        windows.append([Span(int(lo // 1) - 1, int(hi // 1) + 2) if lo <= hi else EMPTY for lo, hi in pairs])
    return windows
