"""The race, which picks the candidate of a kernel to measure next, so that few measurements find a choice.

The rules are in native/core/race.cpp, because the drop-in library follows them too.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from mucudnn import _native
from mucudnn.costs.records import SUCCESS, Measurement


class Candidate(NamedTuple):
    """An algorithm at a micro-batch size that may be measured, with its workspace in bytes."""

    micro_batch: int
    algorithm: str
    workspace: int


class RaceGoal(NamedTuple):
    """The mini-batch and the workspace limits of a race, in bytes; None is unlimited.

    With `compares` an algorithm of the engine is also measured undivided, for comparison with divisions. No
    algorithm fills its workspace faster than `bytes_per_ms`, which bounds its time; None is an unknown rate.
    On a GPU the candidates of a size are tried in the order of the heuristics, elsewhere by least workspace.
    Because a small micro-batch leaves a GPU idle and says little about larger ones, an algorithm begins there
    with a quarter of the mini-batch. Without STOCK no budget ends the race on a GPU, where a run takes less
    time than its preparation.
    """

    mini_batch: int
    limits: Sequence[int | None] = (None,)
    compares: bool = False
    bytes_per_ms: float | None = None
    is_on_gpu: bool = False


def next_candidate(
    candidates: Sequence[Candidate], measured: Iterable[Measurement], goal: RaceGoal
) -> Candidate | None:
    """Return the candidate to measure next; None if none can improve the choice by much.

    `candidates` have no measurement yet. STOCK is measured at the mini-batch, STOCK_SLICE at smaller sizes.
    """
    index = _native.next_candidate(candidates, _parts(measured), *goal)
    return None if index is None else candidates[index]


def hopeless_ms(candidate: Candidate, measured: Iterable[Measurement]) -> float:
    """Return the time above which a candidate is out of the race; infinite before the first measurement.

    Fixed costs alone may make a candidate this slow, so a single run is enough and predicts larger sizes.
    """
    return _native.cutoff_ms(candidate, _parts(measured))


def _parts(measured: Iterable[Measurement]) -> list[tuple[int, str, float, int]]:
    return [
        (m.micro_batch, m.algorithm, m.time_ms, m.workspace)
        for m in measured
        if m.status == SUCCESS and m.time_ms is not None
    ]
