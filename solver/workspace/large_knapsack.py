"""The knapsack of workspace reuse with numpy, which is slow to import."""

from __future__ import annotations

import numpy as np

from .configuration import TIE
from .knapsack import Knapsack


class LargeKnapsack(Knapsack):
    """A knapsack with arrays, which is faster for many sizes."""

    def __init__(self, mini_batch: int) -> None:
        super().__init__(mini_batch)
        self._time, self._parts = np.array(self._time), np.array(self._parts, dtype=np.int64)
        self._single = np.full(mini_batch + 1, np.inf)  # the time of each size as one part

    def _update_larger(self, size: int, time_ms: float) -> None:
        self._single[size] = time_ms
        copies = 1  # doubles in each step: after k steps, divisions with up to 2^k - 1 copies are known
        while copies * size < len(self._time):
            shift = copies * size
            time, parts = self._time[shift:], self._parts[shift:]
            new_time = self._time[:-shift] + copies * time_ms
            new_parts = self._parts[:-shift] + copies
            better = new_time < time * (1 - TIE)
            better |= (new_time <= time * (1 + TIE)) & (new_parts < parts)
            np.copyto(parts, new_parts, where=better)
            np.minimum(time, new_time, out=time)
            copies *= 2

    def _choose_part(self, left: int) -> int:
        sizes = np.arange(left, 0, -1)
        times = self._single[sizes] + self._time[left - sizes]
        sizes = sizes[times <= self._time[left] * (1 + TIE)]
        return int(sizes[self._parts[left - sizes].argmin()])  # argmin takes the first: the largest size
