"""The multiple-choice knapsack that workspace division is, in plain numbers: the interface of its solvers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Options:
    """One kernel's Pareto-optimal choices, of which exactly one is taken.

    `workspace` (int64, bytes above the kernel's least) ascends from 0; `time` (float64, milliseconds)
    strictly descends. Both have the shape (choices,).
    """

    workspace: npt.NDArray[np.int64]
    time: npt.NDArray[np.float64]

    def take(self, indices: npt.NDArray[np.int64]) -> Options:
        """Return some of the options; the least workspace is then that of the first."""
        workspace = self.workspace[indices]
        return Options(workspace - workspace[0], self.time[indices])


@dataclass(frozen=True, slots=True)
class Answer:
    """An index into each kernel's options (None: not found); no choice takes less than `bound` ms."""

    choice: list[int] | None
    bound: float


Solver: TypeAlias = Callable[[Sequence[Options], int, float, float], Answer]
"""Solver(options, capacity in bytes, relative gap at which to stop, seconds at which to stop) -> Answer."""
