"""The fastest of several interleaved ways to run a step, by the times of the steps so far."""

import itertools
import statistics
from collections.abc import Mapping, Sequence

from mucudnn._native import RunTime
from mucudnn.measuring.intervals import UNDECIDED, Median, most_exceptions
from mucudnn.torch.choosing.trials import CHOICES, MIXTURE, STOCK_WAY

# Ways that differ little are compared in _ENOUGH steps of each. Short steps vary more, so if these take less
# than _ENOUGH_S seconds together, up to _ENOUGH_SHORT are run. If they leave doubt, that many run again.
_ENOUGH, _ENOUGH_S, _ENOUGH_SHORT = 7, 3.0, 64
# A comparison ends early if each step of one way took at least this many times as long as its neighbour of
# the other way. The keys count the steps of each way so far: the more steps, the less they must differ.
_CLEAR = {2: 1.5, 3: 1.1, 4: 1.075, 5: 1.06, 6: 1.05}
_FEWEST_WITHOUT_GAIN = 7  # steps that all save too little are enough, too
# PyTorch's own convolutions must take this many times as long as the choices or the mixture: the medians of
# a few steps err by as much, and a model must not get slower by chance.
_LEAST = 1.015
# The largest probability that a sign test calls one of two equal ways faster: in a test that ends a
# comparison early, and in the test after enough steps.
_CHANCE_EARLY, _CHANCE = 0.01, 0.1
# A step counts as undisturbed if its share of time on the CPU is at least this part of the best step's share:
# on one thread, and on several threads, which also wait for each other.
_LEAST_SHARE, _LEAST_SHARE_OF_THREADS = 0.97, 0.9
_PREFERRED = (STOCK_WAY, MIXTURE, CHOICES)  # among ways that take the same time


def fastest(times: Mapping[str, float]) -> str:
    """Return the fastest way; PyTorch's own if that takes less than _LEAST times as long."""
    ways = [way for way in _PREFERRED if way in times]
    return min(ways, key=lambda way: times[way] / (_LEAST if way == STOCK_WAY else 1))


def slower_ways(times: Mapping[str, Sequence[RunTime]]) -> set[str]:
    """Return the ways that get no further steps because another way is better.

    PyTorch's own convolutions stay unless a way saves time in more steps than it would by chance (a sign
    test). Between the choices and the mixture the median decides.
    """
    slower: set[str] = set()
    for preferred, other in itertools.combinations([way for way in _PREFERRED if way in times], 2):
        if not slower & {preferred, other}:
            is_better = _is_better(times[other], times[preferred], is_safe=preferred == STOCK_WAY)
            if is_better is not None:
                slower.add(preferred if is_better else other)
    return slower


def _is_better(other: Sequence[RunTime], preferred: Sequence[RunTime], *, is_safe: bool) -> bool | None:
    """Return whether a way is better than a preferred way; None if more steps must decide.

    With `is_safe` the preferred way stays when in doubt.
    """
    pairs = clean_pairs(preferred, other)
    ratios = [slow_s / fast_s for slow_s, fast_s in pairs]
    count = len(ratios)
    if count < min(_CLEAR):
        return None
    clear = _CLEAR.get(count, _LEAST)
    few = max(most_exceptions(count, _CHANCE_EARLY), 0)
    if sum(ratio <= clear for ratio in ratios) <= few:
        return True
    most = _LEAST if count >= _FEWEST_WITHOUT_GAIN else 1 / clear
    if sum(ratio >= most for ratio in ratios) <= few:
        return False
    seconds = min(map(sum, zip(*pairs, strict=True)))
    done = max(
        count / _ENOUGH_SHORT, min(count / _ENOUGH, seconds / _ENOUGH_S)
    )  # 1 if there are enough steps
    if done < 1:
        return None
    median = statistics.median(ratios)
    if not is_safe or median < _LEAST:
        return median >= _LEAST
    if sum(ratio <= 1 for ratio in ratios) <= most_exceptions(count, _CHANCE):
        return True
    return False if done >= 2 else None


def most_steps_to_compare(ratio: float) -> int:
    """Return how many steps of a way that takes `ratio` times as long tell it from the fastest, at most."""
    return next((count for count, clear in _CLEAR.items() if ratio >= clear), _ENOUGH_SHORT)


def name_speedup(speedup: Median | None) -> str:
    """Return `faster` or `slower` if the interval excludes 1 and the median differs from 1 by _LEAST.

    Return `same` if the whole interval differs from 1 by less, and otherwise `undecided`.
    """
    if speedup is None:
        return UNDECIDED
    if speedup.low > 1 and speedup.value >= _LEAST:
        return "faster"
    if speedup.high < 1 and speedup.value <= 1 / _LEAST:
        return "slower"
    return "same" if speedup.low > 1 / _LEAST and speedup.high < _LEAST else UNDECIDED


def clean_pairs(first: Sequence[RunTime], second: Sequence[RunTime]) -> list[tuple[float, float]]:
    """Return the seconds of neighbouring steps of two ways, without pairs that other programs disturbed."""
    are_clean = zip(_undisturbed(first), _undisturbed(second), strict=False)
    return [
        (own.wall_ms / 1e3, other.wall_ms / 1e3)
        for own, other, both in zip(first, second, are_clean, strict=False)
        if all(both)
    ]


def _undisturbed(steps: Sequence[RunTime]) -> list[bool]:
    """Return for each step of a way whether it spent about as much of its time on the CPU as the best step.

    The share itself says little, because a step also waits for data, and runs Python code on one thread.
    """
    shares = [1.0 if step.cpu_ms is None else step.cpu_ms / (step.threads * step.wall_ms) for step in steps]
    return [
        share >= max(shares) * (_LEAST_SHARE if step.threads == 1 else _LEAST_SHARE_OF_THREADS)
        for step, share in zip(steps, shares, strict=True)
    ]


def relative_times(times: Mapping[str, Sequence[RunTime]], best: str) -> dict[str, float]:
    """Return the ms of each way: those of the best step times the median ratio of neighbouring steps.

    Ways without an undisturbed step beside one of the best way are missing.
    """
    best_ms = min(own for own, _ in clean_pairs(times[best], times[best])) * 1e3
    pairs = {way: clean_pairs(own, times[best]) for way, own in times.items()}
    return {
        way: best_ms * statistics.median(own / other for own, other in both)
        for way, both in pairs.items()
        if both
    }
