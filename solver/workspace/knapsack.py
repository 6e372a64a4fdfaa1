"""The unbounded knapsack of workspace reuse: the fastest way to make each size of a mini-batch."""

from __future__ import annotations

import math

from .configuration import TIE, Configuration, MicroConfiguration


class Knapsack:
    """The fastest way to make every size 0..N from the micro-configurations added so far.

    The lists are indexed by size. `_time` has the least time, `_parts` the fewest parts that take this time,
    and `_item` the fastest micro-configuration.
    """

    def __init__(self, mini_batch: int) -> None:
        self._time = [0.0] + [math.inf] * mini_batch
        self._parts = [0] * (mini_batch + 1)
        self._item: dict[int, MicroConfiguration] = {}

    @property
    def fastest(self) -> float:
        """The least milliseconds of the whole mini-batch; infinite if no parts add up to it."""
        return self._time[-1]

    def add(self, item: MicroConfiguration) -> None:
        """Add a micro-configuration, which must be faster than earlier ones of its size."""
        if item.time_ms > self._time[item.micro_batch] * (1 + TIE):
            return  # a division of this size is faster, and needs no more workspace
        self._item[item.micro_batch] = item
        # Every larger size may now have any number of parts of this size and time.
        size, time_ms, time, parts = item.micro_batch, item.time_ms, self._time, self._parts
        most, least = 1 + TIE, 1 - TIE
        for whole in range(size, len(time)):
            new_time, old_time = time[whole - size] + time_ms, time[whole]
            if new_time <= old_time * most:
                new_parts = parts[whole - size] + 1
                if new_time < old_time * least or new_parts < parts[whole]:
                    parts[whole] = new_parts
                if new_time < old_time:
                    time[whole] = new_time

    def configuration(self) -> Configuration:
        """Return the fastest configuration of the mini-batch; of equal ones, that with the fewest parts."""
        chosen: list[MicroConfiguration] = []
        left = len(self._time) - 1
        while left:
            able = [size for size in self._item if size <= left and self._is_optimal(size, left)]
            size = min(able, key=lambda size: (self._parts[left - size], -size))
            chosen.append(self._item[size])
            left -= size
            # The rest has no larger part, so this one is taken again as long as that stays optimal.
            while (
                left >= size and self._parts[left - size] < self._parts[left] and self._is_optimal(size, left)
            ):
                chosen.append(self._item[size])
                left -= size
        chosen.sort(key=lambda item: -item.micro_batch)
        return Configuration(tuple(chosen))

    def _is_optimal(self, size: int, left: int) -> bool:
        """Return whether a fastest way to make `left` can have a part of this size."""
        time_ms = self._item[size].time_ms + self._time[left - size]
        return time_ms <= self._time[left] * (1 + TIE)
