"""Medians of repeated times with their intervals, and on which side of a bound they lie."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

UNDECIDED = "undecided"
_FEWEST = 3
_CHANCE_OF_SIDE = 0.025  # the largest probability that a median lies above its interval, and below it


@dataclass(frozen=True)
class Median:
    """A median, and its 95 % interval by a sign test."""

    value: float
    low: float
    high: float


def median_of(values: Sequence[float]) -> Median | None:
    """Return the median of values and its interval; None for fewer than six, which have none at 95 %."""
    outside, ordered = most_exceptions(len(values), _CHANCE_OF_SIDE), sorted(values)
    if outside < 0:
        return None
    middle = len(values) // 2
    return Median((ordered[middle] + ordered[~middle]) / 2, ordered[outside], ordered[~outside])


def name_side(values: Sequence[float], bound: float) -> str:
    """Return "above" or "below" if the interval of the median lies on that side of a bound, else UNDECIDED.

    Three to five values must all lie there; fewer decide nothing.
    """
    median, few = median_of(values), sorted(values)
    if len(values) < _FEWEST:
        return UNDECIDED
    low, high = (median.low, median.high) if median else (few[0], few[-1])
    return "above" if low > bound else "below" if high <= bound else UNDECIDED


@cache
def most_exceptions(count: int, chance: float) -> int:
    """Return how many of `count` values may lie on the other side; -1 if there are too few values.

    If both sides are equally likely, at most that many values lie on one of them with a probability of at
    most `chance` (a sign test).
    """
    share = itertools.accumulate(math.comb(count, exceptions) / 2**count for exceptions in range(count + 1))
    return sum(1 for _ in itertools.takewhile(lambda sum_: sum_ <= chance, share)) - 1
