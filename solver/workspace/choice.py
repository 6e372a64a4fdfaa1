"""The interface of solvers of workspace division, which is a multiple-choice knapsack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt


@dataclass(frozen=True, slots=True)
class Options:
    """One kernel's Pareto-optimal configurations, of which a solver takes exactly one.

    `workspace` (int64, bytes above the kernel's least) ascends from 0; `time` (float64, milliseconds)
    strictly descends. Both have the shape (choices,).
    """

    workspace: npt.NDArray[np.int64]
    time: npt.NDArray[np.float64]

    def take(self, indices: npt.NDArray[np.int64]) -> Options:
        """Return the options at these indices; their workspaces count from the first one's."""
        workspace = self.workspace[indices]
        return Options(workspace - workspace[0], self.time[indices])


@dataclass(frozen=True, slots=True)
class Answer:
    """A solver's answer.

    Attributes:
        choice: an index into each kernel's options, or None if the solver found no choice in time.
        bound: the milliseconds that every choice takes at least.
    """

    choice: list[int] | None
    bound: float


Solver: TypeAlias = Callable[[Sequence[Options], int, float, float], Answer]
"""A function of the options, the capacity in bytes, and the relative gap and the seconds at which to stop."""
