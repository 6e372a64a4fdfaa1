"""The copies between a GPU and the tensors that are stored elsewhere, while tiles are computed.

Parts of tensors go through pinned memory, because a GPU copies rows that lie apart no other way while it
computes. On a CPU a tile reads and writes stored tensors directly, and the system copies a file's pages.
"""

import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from itertools import chain
from typing import Any

import torch
from torch import Tensor
from torch.fx import Node

from mucudnn.torch.training.offload import Lanes

Parts = dict[Node, Tensor]


class Copies:
    """The copies of a run, on streams of their own."""

    def __init__(self, device: torch.device) -> None:
        self._device, self._arriving = device, list[Any]()
        self._leaving: list[tuple[Callable[..., Any], Tensor, Tensor, Tensor, Any]] = []

    @cached_property
    def _lanes(self) -> Lanes:
        return Lanes(self._device, sys.maxsize)

    def loaded(self, every: Iterable[Parts]) -> Iterator[Parts]:
        """Yield each of several groups of parts on the device, while the next one is copied there."""
        now: Parts | None = None
        try:
            for parts in chain(every, [{}]):
                self._wait()
                later = dict(parts)
                for node, part in parts.items():
                    if part.device != self._device:
                        pinned = _pinned_like(part).copy_(part)
                        later[node] = torch.empty_like(pinned, device=self._device)
                        self._arriving.append(self._lanes.copy(later[node], pinned, "in", 0))
                if now is not None:
                    yield now
                now = later
        finally:  # no memory may be freed under a copy
            self._wait()

    def _wait(self) -> None:
        for moment in self._arriving:
            self._lanes.wait_for(moment)
        self._arriving.clear()

    def save(self, write: Callable[..., Any], to: Tensor, tile: Tensor) -> None:
        """Write a tile to a part of a stored tensor; to one that is elsewhere not before `finish`."""
        if to.device == tile.device:
            write(to, tile)
            return
        tile, pinned = tile.contiguous(), _pinned_like(tile)
        self._leaving.append((write, to, pinned, tile, self._lanes.copy(pinned, tile, "out", 0)))

    def finish(self) -> None:
        """Wait for the tiles that leave the device, and write them where they are stored."""
        for write, to, pinned, _, moment in self._leaving:
            moment.synchronize()
            write(to, pinned)
        self._leaving.clear()


def _pinned_like(part: Tensor) -> Tensor:
    return torch.empty(part.shape, dtype=part.dtype, pin_memory=True)
