"""The relaxation of workspace division in which a kernel's options may be mixed.

A greedy method solves it: take the segments of all kernels' lower convex hulls, in the order of milliseconds
saved per byte, until the capacity is used up. No division takes less time than this solution. The price of a
byte at its end rules out options that no division better than a known one can have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from .choice import Options

Floats: TypeAlias = npt.NDArray[np.float64]
Ints: TypeAlias = npt.NDArray[np.int64]


def find_worthwhile(options: Sequence[Options], capacity: int) -> list[Ints]:
    """Return the indices of each kernel's options that an optimal division may have, ascending.

    All options of at least one optimal division are among them (within rounding).
    """
    segments = Segments(options)
    known = segments.fill(capacity)
    best = sum(float(kernel.time[i]) for kernel, i in zip(options, known, strict=True))
    price = segments.price(capacity)
    costs = [kernel.time + price * kernel.workspace for kernel in options]
    bound = sum(float(cost.min()) for cost in costs) - price * capacity
    kept = []
    for cost, i in zip(costs, known, strict=True):
        keep = bound + (cost - cost.min()) <= best
        keep[i] = True
        kept.append(np.flatnonzero(keep))
    extra = [kernel.workspace[i] - kernel.workspace[i[0]] for kernel, i in zip(options, kept, strict=True)]
    spare = capacity - sum(int(kernel.workspace[i[0]]) for kernel, i in zip(options, kept, strict=True))
    return [i[more <= spare] for i, more in zip(kept, extra, strict=True)]


class Segments:
    """The segments of all kernels' lower convex hulls, sorted by milliseconds saved per byte, descending."""

    def __init__(self, options: Sequence[Options]) -> None:
        hulls = [convex_hull(kernel) for kernel in options]
        self._slowest = np.array([kernel.time[0] for kernel in options])
        workspace = np.concatenate([np.diff(k.workspace[h]) for k, h in zip(options, hulls, strict=True)])
        saved = np.concatenate([-np.diff(k.time[h]) for k, h in zip(options, hulls, strict=True)])
        order = np.argsort(-saved / workspace, kind="stable")  # stable: a kernel's segments keep their order
        self._workspace, self._saved = workspace[order], saved[order]
        self._kernel = np.repeat(np.arange(len(options)), [len(hull) - 1 for hull in hulls])[order]
        self._option = np.concatenate([hull[1:] for hull in hulls])[order]

    def price(self, capacity: int) -> float:
        """Return the milliseconds that one more byte would save. The capacity must not fit all segments."""
        last = int(np.searchsorted(np.cumsum(self._workspace), capacity, side="right"))
        return float(self._saved[last] / self._workspace[last])

    def fill(self, capacity: int) -> list[int]:
        """Return a good choice: each segment that fits with the earlier segments of its kernel."""
        choice = [0] * len(self._slowest)
        full: set[int] = set()
        for kernel, option, workspace in zip(
            self._kernel.tolist(), self._option.tolist(), self._workspace.tolist(), strict=True
        ):
            if kernel not in full and workspace <= capacity:
                choice[kernel] = option
                capacity -= workspace
            else:
                full.add(kernel)
        return choice

    def after(self, done: int) -> Rest:
        """Return the relaxation over the kernels that remain when the first `done` are decided."""
        left = self._kernel >= done
        workspace = np.concatenate(([0], np.cumsum(self._workspace[left])))
        saved = np.concatenate(([0.0], np.cumsum(self._saved[left])))
        slowest = self._slowest[done:]
        kernel, option = self._kernel[left] - done, self._option[left]
        return Rest(workspace, slowest.sum() - saved, kernel, option, len(slowest))


@dataclass(frozen=True, slots=True)
class Rest:
    """The remaining kernels, of which there are `kernels`.

    `workspace` and `time` are their sums after each whole segment that is taken, from none to all. Segment i
    moves `kernel[i]` to its option `option[i]`.
    """

    workspace: Ints
    time: Floats
    kernel: Ints
    option: Ints
    kernels: int

    def bound(self, capacity: Ints) -> Floats:
        """Return the least time within each capacity if options could be mixed."""
        return np.interp(capacity, self.workspace, self.time)

    def whole(self, capacity: Ints) -> Floats:
        """Return the time within each capacity with only whole segments, as in `choice`."""
        time: Floats = self.time[np.searchsorted(self.workspace, capacity, side="right") - 1]
        return time

    def choice(self, capacity: int) -> list[int]:
        """Return each kernel's option if only whole segments are taken until the capacity is used up."""
        taken = int(np.searchsorted(self.workspace, capacity, side="right")) - 1
        choice = [0] * self.kernels
        for kernel, option in zip(self.kernel[:taken].tolist(), self.option[:taken].tolist(), strict=True):
            choice[kernel] = option
        return choice


def convex_hull(kernel: Options) -> Ints:
    """Return the indices of the options on the lower convex hull."""

    def slope(left: int, right: int) -> float:
        run = kernel.workspace[right] - kernel.workspace[left]
        return float((kernel.time[right] - kernel.time[left]) / run)

    hull: list[int] = []
    for option in range(len(kernel.time)):
        while len(hull) > 1 and slope(hull[-2], hull[-1]) >= slope(hull[-1], option):
            hull.pop()
        hull.append(option)
    return np.array(hull)
