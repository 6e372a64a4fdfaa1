"""Time of a whole network against its total workspace."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import numpy as np

from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration, divide_workspace
from mucudnn.solver.workspace.configuration import pareto_front

Fronts = Mapping[Kernel, Sequence[Configuration]]
_SOLVED = 40  # the number of totals at which WD is solved, evenly spaced on a logarithmic scale


@dataclass(frozen=True)
class CurvePoint:
    """The workspace in bytes and the time in milliseconds of all kernels together."""

    workspace: int
    time_ms: float


@dataclass(frozen=True)
class Curve:
    """A step curve: points with workspace ascending and time descending.

    The time of a point holds up to the workspace of the next point.
    """

    points: tuple[CurvePoint, ...]

    def at(self, workspace: int) -> float | None:
        """Return the milliseconds within `workspace` bytes, or None if nothing fits."""
        after = bisect_right(self.points, workspace, key=lambda point: point.workspace)
        return self.points[after - 1].time_ms if after else None

    def least_workspace(self, time_ms: float) -> int | None:
        """Return the least bytes for a time, within rounding, or None if the curve is never that fast."""
        enough = (p.workspace for p in self.points if p.time_ms <= time_ms * (1 + 1e-9))
        return next(enough, None)


def even_curve(fronts: Fronts) -> Curve:
    """Return the curve with the total split evenly, so that each kernel may use the same number of bytes.

    `fronts` holds the Pareto-optimal configurations of each kernel, workspace ascending. The curve is empty
    if a kernel has none.
    """
    if not all(fronts.values()):
        return Curve(())
    kernels = sum(kernel.count for kernel in fronts)
    points = [
        CurvePoint(kernels * limit, _sum_costs(choice).time_ms) for limit, choice in _choose_evenly(fronts)
    ]
    return Curve(tuple(pareto_front(points)))


def divided_curve(fronts: Fronts, totals: Sequence[int] = ()) -> Curve:
    """Return the curve with the total divided among the kernels (WD).

    WD is solved at totals of all magnitudes, and at `totals`. Even splits count as divisions too, so the
    curve is never above `even_curve`. It is empty if a kernel has no configuration.
    """
    if not all(fronts.values()):
        return Curve(())
    divisions = [choice for _, choice in _choose_evenly(fronts)]
    least = sum(kernel.count * front[0].workspace for kernel, front in fronts.items())
    most = sum(kernel.count * front[-1].workspace for kernel, front in fronts.items())
    if most > least:
        lowest = max(least, most // 2**14, 1)
        spaced = np.geomspace(lowest, most, _SOLVED).astype(np.int64).tolist()
        counts = {kernel: kernel.count for kernel in fronts}
        for total in {least, *spaced, *(total for total in totals if total >= least)}:
            divisions.append(divide_workspace(fronts, total, counts=counts))
    points = sorted(map(_sum_costs, divisions), key=lambda point: (point.workspace, point.time_ms))
    return Curve(tuple(pareto_front(points)))


def _choose_evenly(fronts: Fronts) -> list[tuple[int, dict[Kernel, Configuration]]]:
    """Return (bytes for each kernel, choice) at every limit that changes the choice."""
    least = max(front[0].workspace for front in fronts.values())
    limits = sorted({c.workspace for front in fronts.values() for c in front if c.workspace >= least})
    return [
        (
            limit,
            {
                k: front[bisect_right(front, limit, key=attrgetter("workspace")) - 1]
                for k, front in fronts.items()
            },
        )
        for limit in limits
    ]


def _sum_costs(choice: Mapping[Kernel, Configuration]) -> CurvePoint:
    return CurvePoint(
        sum(kernel.count * c.workspace for kernel, c in choice.items()),
        sum(kernel.count * c.time_ms for kernel, c in choice.items()),
    )
