"""A simulation of PyTorch's caching allocator, which takes more from CUDA than a program's tensors need.

The rules are those of PyTorch's notes on memory management in CUDA and of c10/cuda/CUDACachingAllocator.cpp,
without settings in PYTORCH_ALLOC_CONF.
"""

import bisect
import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from mucudnn.plans.memory.planning import ALIGNMENT
from mucudnn.sizes import round_up

_MIB = 1024**2
_SMALL = _MIB  # the largest tensor of the small pool, and the largest rest that stays with a large block
_SMALL_SEGMENT, _SHARED_SEGMENT = 2 * _MIB, 20 * _MIB
_LEAST_OWN = 10 * _MIB  # from here on a new segment is for one tensor, rounded up to whole 2 MiB

FREE = -1
Event: TypeAlias = tuple[Hashable, int]
"""A tensor's key, with the bytes that are allocated for it, or with FREE."""


@dataclass(eq=False)
class _Block:
    """A part of a segment, between the parts before and after it."""

    segment: int
    offset: int
    size: int
    is_small: bool
    before: "_Block | None" = None
    after: "_Block | None" = None
    is_free: bool = True


_Free: TypeAlias = tuple[int, int, int, _Block]
"""A free block after its size, segment and offset: the best fit at the lowest address comes first."""


class _Allocator:
    """The allocator of a device.

    `most` are the most bytes that it has held in segments. To hold no more than `limit`, it first returns
    free segments to CUDA. Where PyTorch would then run out of memory, `most` exceeds the limit.
    """

    def __init__(self, limit: float) -> None:
        self.most = 0
        self._limit = limit
        self._held = self._segments = 0
        self._free: dict[bool, list[_Free]] = {True: [], False: []}
        self._blocks: dict[Hashable, _Block] = {}

    def run(self, events: Iterable[Event]) -> None:
        """Allocate and free tensors in the order of the events."""
        for key, size in events:
            if size > 0:
                self._blocks[key] = self._allocate(round_up(size, ALIGNMENT))
            elif key in self._blocks:
                self._release(self._blocks.pop(key))

    def _allocate(self, size: int) -> _Block:
        is_small = size <= _SMALL
        pool = self._free[is_small]
        place = bisect.bisect_left(pool, (size,))
        block = pool.pop(place)[-1] if place < len(pool) else self._take_segment(size, is_small)
        block.is_free = False
        rest = block.size - size
        if rest >= ALIGNMENT if is_small else rest > _SMALL:
            after = _Block(block.segment, block.offset + size, rest, is_small, block, block.after)
            if block.after:
                block.after.before = after
            block.size, block.after = size, after
            self._insert(after)
        return block

    def _take_segment(self, size: int, is_small: bool) -> _Block:
        if is_small:
            size = _SMALL_SEGMENT
        else:
            size = _SHARED_SEGMENT if size < _LEAST_OWN else round_up(size, _SMALL_SEGMENT)
        if self._held + size > self._limit:
            self._return_segments()
        self._held += size
        self.most = max(self.most, self._held)
        self._segments += 1
        return _Block(self._segments, 0, size, is_small)

    def _return_segments(self) -> None:
        for pool in self._free.values():
            self._held -= sum(size for size, _, _, block in pool if block.before is block.after is None)
            pool[:] = [free for free in pool if free[-1].before or free[-1].after]

    def _release(self, block: _Block) -> None:
        block.is_free = True
        if (before := block.before) and before.is_free:
            self._remove(before)
            block = _join(before, block)
        if (after := block.after) and after.is_free:
            self._remove(after)
            block = _join(block, after)
        self._insert(block)

    def _insert(self, block: _Block) -> None:
        bisect.insort(self._free[block.is_small], (block.size, block.segment, block.offset, block))

    def _remove(self, block: _Block) -> None:
        pool = self._free[block.is_small]
        del pool[bisect.bisect_left(pool, (block.size, block.segment, block.offset))]


def _join(first: _Block, second: _Block) -> _Block:
    first.size, first.after = first.size + second.size, second.after
    if first.after:
        first.after.before = first
    return first


def count_reserved(events: Iterable[Event], limit: float = math.inf) -> int:
    """Return the most bytes that the allocator holds, which exceed the limit if they do not fit."""
    allocator = _Allocator(limit)
    allocator.run(events)
    return allocator.most


def find_least(events: Sequence[Event]) -> int:
    """Return a limit within which the events fit, which is close to the least.

    The search begins with the bytes that the tensors take. A higher limit may need more, because free
    segments are then returned later.
    """
    limit, most = count_live(events)[1], count_reserved(events)
    while limit < (needed := min(count_reserved(events, limit), most)):
        limit = needed
    return limit


def count_live(events: Iterable[Event]) -> tuple[int, int]:
    """Return the bytes that tensors take after these events, and the most that they take at once."""
    sizes: dict[object, int] = {}
    now = most = 0
    for key, size in events:
        now -= sizes.pop(key, 0)
        if size != FREE:
            sizes[key] = round_up(size, ALIGNMENT)
            now += sizes[key]
            most = max(most, now)
    return now, most
