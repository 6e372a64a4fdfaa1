"""The race: which candidate of a kernel to measure next, so that few measurements find a choice.

Sizes are compared by their time for one sample. An algorithm starts at a medium micro-batch size, and goes on
to the next larger or smaller size as long as that may help. A candidate stays in the race while it may beat
every measurement that needs no more workspace than it. So the whole desirable set is raced for, under any
limit.

The answer depends on the measurements alone: a process that finds them in the cache ends the race too. On a
busy machine a wrong first measurement can put a good candidate out of the race.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from mucudnn.costs.records import STOCK, STOCK_SLICE, SUCCESS, Measurement

# The next size may save this share of the time for one sample: upwards a call's fixed costs are spread over
# more samples, downwards the tensors of a slice stay in the caches.
_GAIN_UP, _GAIN_DOWN = 0.40, 0.20
_LEAST_GAIN = 0.01  # smaller gains than this end the race
_SECOND = 1.15  # an algorithm up to this factor behind is measured undivided too


class Candidate(NamedTuple):
    """An algorithm at a micro-batch size that may be measured, with its workspace in bytes."""

    micro_batch: int
    algorithm: str
    workspace: int


class _Row(NamedTuple):
    sample_ms: float  # the time for one sample
    workspace: int


_Rows = Mapping[str, Mapping[int, _Row]]  # algorithm -> micro-batch size -> row


def next_candidate(
    candidates: Sequence[Candidate], measured: Iterable[Measurement], mini_batch: int, *, every_size: bool
) -> Candidate | None:
    """Return the candidate to measure next; None if no other can improve the choice by much.

    With `every_size` one of the engine's algorithms is measured at each size, so that the measurements tell a
    later reader which sizes were raced for.

    `candidates` are those without a measurement, and STOCK is at the mini-batch, STOCK_SLICE below it. The
    framework's come first, because its tensors are freed before the engine's are made.
    """
    rows: dict[str, dict[int, _Row]] = {}
    for m in measured:
        if m.status == SUCCESS and m.median_ms is not None and m.micro_batch <= mini_batch:
            row = _Row(m.median_ms / m.micro_batch, m.workspace)
            rows.setdefault(m.algorithm, {})[m.micro_batch] = row
    stock = [c for c in candidates if c.algorithm in (STOCK, STOCK_SLICE)]
    engine = [c for c in candidates if c.algorithm not in (STOCK, STOCK_SLICE)]
    whole = next((c for c in stock if c.algorithm == STOCK), None)
    return (
        whole
        or _next_of(stock, rows, mini_batch)
        or _next_of(engine, rows, mini_batch)
        or _next_undivided(engine, rows, mini_batch)
        or (_next_for_every_size(engine, rows) if every_size else None)
    )


def rival_ms(candidate: Candidate, measured: Iterable[Measurement]) -> float:
    """Return the time above which a candidate is out of the race; infinite if it has no rival yet."""
    best = min(
        (
            m.median_ms / m.micro_batch
            for m in measured
            if m.status == SUCCESS and m.median_ms is not None and m.workspace <= candidate.workspace
        ),
        default=float("inf"),
    )
    return best * candidate.micro_batch * (1 + _GAIN_UP)


def _next_of(candidates: Sequence[Candidate], rows: _Rows, mini_batch: int) -> Candidate | None:
    by_algorithm: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        by_algorithm.setdefault(candidate.algorithm, []).append(candidate)
    for algorithm, own in by_algorithm.items():
        if algorithm not in rows:
            return min(own, key=lambda c: abs(c.micro_batch - _medium(mini_batch)))
    return next((c for c in candidates if _may_help(c, rows)), None)


def _medium(mini_batch: int) -> int:
    """Return the size that the race begins with: its runs are short, and fixed costs hardly count."""
    return max(1, mini_batch // 8)


def _may_help(candidate: Candidate, rows: _Rows) -> bool:
    own = rows[candidate.algorithm]
    below = max((size for size in own if size < candidate.micro_batch), default=None)
    above = min((size for size in own if size > candidate.micro_batch), default=None)
    hopes = []
    if below is not None:
        before = max((size for size in own if size < below), default=None)
        # If the last step upwards gained little, the next one will not gain much either.
        is_flat = before is not None and own[below].sample_ms > own[before].sample_ms * (1 - 2 * _LEAST_GAIN)
        hopes.append(own[below].sample_ms * (1 if is_flat else 1 - _GAIN_UP))
    if above is not None:
        after = min((size for size in own if size > above), default=None)
        is_flat = after is not None and own[above].sample_ms > own[after].sample_ms * (1 - 2 * _LEAST_GAIN)
        hopes.append(own[above].sample_ms * (1 if is_flat else 1 - _GAIN_DOWN))
    hope = max(hopes) if len(hopes) > 1 else hopes[0]
    return hope < _best_ms(candidate.workspace, rows) * (1 - _LEAST_GAIN)


def _best_ms(workspace: int, rows: _Rows) -> float:
    """Return the least time for one sample of all that needs no more than a workspace."""
    return min(
        (row.sample_ms for sizes in rows.values() for row in sizes.values() if row.workspace <= workspace),
        default=float("inf"),
    )


def _next_undivided(candidates: Sequence[Candidate], rows: _Rows, mini_batch: int) -> Candidate | None:
    """Return an algorithm to measure undivided: the rival that divisions are compared with."""
    whole = [c for c in candidates if c.micro_batch == mini_batch and c.algorithm in rows]
    hopes = {c: min(row.sample_ms for row in rows[c.algorithm].values()) for c in whole}
    if not hopes:
        return None
    best = min(hopes, key=hopes.__getitem__)
    done = [
        sizes[mini_batch].sample_ms
        for algorithm, sizes in rows.items()
        if mini_batch in sizes and algorithm not in (STOCK, STOCK_SLICE)
    ]
    return best if not done or hopes[best] * _SECOND < min(done) else None


def _next_for_every_size(candidates: Sequence[Candidate], rows: _Rows) -> Candidate | None:
    measured = {size for name, own in rows.items() if name not in (STOCK, STOCK_SLICE) for size in own}
    open_ = [c for c in candidates if c.micro_batch not in measured and c.algorithm in rows]
    return min(open_, key=lambda c: min(row.sample_ms for row in rows[c.algorithm].values()), default=None)
