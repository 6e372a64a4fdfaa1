"""The cut of a chain of operations into stages of about the same time, with little to send between them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import accumulate

TOLERANCE = 0.05


def cut(
    times: Sequence[float], sent: Sequence[float], stages: int, tolerance: float = TOLERANCE
) -> list[int]:
    """Return the first operation of each stage but the first.

    No other cut has a slowest stage that is faster. Of all cuts whose slowest stage takes up to `tolerance`
    more, it sends the fewest bytes.

    Args:
        times: the milliseconds of each operation.
        sent: for each operation but the first, the bytes that a cut before it sends; infinity where no cut is
            possible.
        stages: the number of stages.
        tolerance: the share of time that a stage may take more than in the most balanced cut.

    Raises:
        ValueError: there are fewer possible cuts than needed.
    """
    possible = [0, *(i for i, size in enumerate(sent, 1) if size < math.inf)]
    if stages > len(possible):
        raise ValueError(f"the model can be cut into {len(possible)} stages at most, not into {stages}")
    sums = [0.0, *accumulate(times)]
    ends = [*possible[1:], len(times)]
    price = {0: 0.0, **{i: sent[i - 1] for i in possible[1:]}}
    slowest, _ = _best(ends, stages, lambda a, b: sums[b] - sums[a], max)
    limit = slowest * (1 + tolerance)
    _, starts = _best(
        ends,
        stages,
        # The sums may differ by rounding errors from those with which the limit was found.
        lambda a, b: price[a] if sums[b] - sums[a] <= limit * (1 + 1e-9) else math.inf,
        lambda a, b: a + b,
    )
    return starts[1:]


def _best(
    ends: Sequence[int],
    stages: int,
    cost: Callable[[int, int], float],
    join: Callable[[float, float], float],
) -> tuple[float, list[int]]:
    """Return the least joint cost of a number of stages, and where each of them begins.

    Args:
        ends: where a stage may end, and all stages but the first begin.
        stages: the number of stages.
        cost: the cost of a stage between two places.
        join: the cost of two groups of stages together.
    """
    best: dict[int, tuple[float, list[int]]] = {0: (0.0, [])}
    for _ in range(stages):
        best = {
            end: min(
                (join(earlier, cost(start, end)), [*starts, start])
                for start, (earlier, starts) in best.items()
                if start < end
            )
            for end in ends
            if any(start < end for start in best)
        }
    return best[ends[-1]]
