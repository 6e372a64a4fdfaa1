"""The spread of repeated times, in a separate module because `statistics` is slow to import."""

import statistics
from collections.abc import Sequence


def spread(times: Sequence[float]) -> float:
    """Return the distance between the quartiles of times, in their unit; 0 for a single time."""
    if len(times) < 2:
        return 0.0
    quartiles = statistics.quantiles(times, n=4, method="inclusive")
    return quartiles[2] - quartiles[0]
