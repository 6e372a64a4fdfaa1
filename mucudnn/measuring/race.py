"""The race: which candidate of a kernel to measure next, so that few measurements find a choice.

STOCK comes first and undivided: its time is the unit of every budget. Each algorithm then runs at a small
micro-batch size, where a run costs little. Two sizes of an algorithm give its fixed time and its time for one
sample, which predict the larger sizes. Before the second size is measured, the workspace predicts: the share
of it that does not grow with the size tells how much work an algorithm does once for each call, such as the
transform of a filter. A larger size is measured only if its prediction beats the best measurement so far.

The answer depends on the measurements alone, so a process that finds them in the cache ends the race too. The
constants come from `python -m bench.race`, which plays the race on recorded measurements.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple

from mucudnn.costs.records import STOCK, STOCK_SLICE, SUCCESS, Measurement

_PROBE = 32  # an algorithm begins with this part of the mini-batch
_GAIN = 0.02  # a prediction must save this share of the best time for one sample
_LEAST_FIXED = 0.6  # the least fixed share of a time: calls have fixed costs without workspace too
_LEAST_SLOPE = 0.05  # a sample takes this share at least: noise must not predict that it costs nothing
_NEARLY = 1.03  # the smallest size whose prediction is this near to the best one is measured
_CLOSE = 1.3  # an algorithm up to this factor behind the best one is tried at smaller sizes too
_SLICES = 0.5  # slices of STOCK are tried where nothing is faster than STOCK by more than this factor
_SECOND = 1.15  # an algorithm up to this factor behind is measured undivided too
_BUDGET = 12.0  # units that a race may spend
_HOPELESS = 1.3  # a first run this factor above the best time ends the measurement of an algorithm


class Candidate(NamedTuple):
    """An algorithm at a micro-batch size that may be measured, with its workspace in bytes.

    The workspace includes what the sum of such slices needs.
    """

    micro_batch: int
    algorithm: str
    workspace: int


class Race(NamedTuple):
    """The mini-batch and the limits that a race is run for, in bytes; None stands for no limit.

    With `compares` an algorithm of the engine is also measured undivided, as the rival of divisions. No
    algorithm fills its workspace faster than `bytes_per_ms`, which bounds its time; None is an unknown rate.
    """

    mini_batch: int
    limits: Sequence[int | None] = (None,)
    compares: bool = False
    bytes_per_ms: float | None = None


_Rows = Mapping[str, Mapping[int, float]]  # algorithm -> micro-batch size -> ms for one sample
_Open = Mapping[str, Mapping[int, Candidate]]


def next_candidate(
    candidates: Sequence[Candidate], measured: Iterable[Measurement], race: Race
) -> Candidate | None:
    """Return the candidate to measure next; None if no other can improve the choice by much.

    `candidates` are those without a measurement, and STOCK is at the mini-batch, STOCK_SLICE below it.
    """
    whole = next((c for c in candidates if c.algorithm == STOCK), None)
    if whole is not None:
        return whole
    rows = [m for m in measured if m.micro_batch <= race.mini_batch]
    for limit in race.limits:
        found = _Field(candidates, rows, race, limit).next_candidate()
        if found is not None:
            return found
    field = _Field(candidates, rows, race, race.limits[-1])
    return field.next_undivided() if race.compares else None


def rival_ms(candidate: Candidate, measured: Iterable[Measurement]) -> float:
    """Return the time above which a candidate is out of the race; infinite if it has no rival yet.

    A candidate may be slow for its fixed costs alone. So it is measured less, but predicts larger sizes.
    """
    best = min(
        (
            m.median_ms / m.micro_batch
            for m in measured
            if m.status == SUCCESS and m.median_ms is not None and m.workspace <= candidate.workspace
        ),
        default=float("inf"),
    )
    return best * candidate.micro_batch * _HOPELESS


class _Field:
    """The rows and the candidates that need no more workspace than a limit."""

    def __init__(
        self,
        candidates: Iterable[Candidate],
        measured: Sequence[Measurement],
        race: Race,
        limit: int | None,
    ) -> None:
        self._race, self._mini_batch = race, race.mini_batch
        rows: dict[str, dict[int, float]] = {}
        self._workspaces: dict[str, dict[int, int]] = {}
        whole = None
        for m in measured:
            if m.status != SUCCESS or m.median_ms is None:
                continue
            if m.algorithm == STOCK:
                whole = m
            if limit is not None and m.workspace > limit:
                continue
            rows.setdefault(m.algorithm, {})[m.micro_batch] = m.median_ms / m.micro_batch
            self._workspaces.setdefault(m.algorithm, {})[m.micro_batch] = m.workspace
        open_: dict[str, dict[int, Candidate]] = {}
        self._slices = []
        for c in candidates:
            if c.algorithm == STOCK_SLICE:
                if whole is not None and _fits(whole.workspace * c.micro_batch // self._mini_batch, limit):
                    self._slices.append(c)
            elif c.algorithm != STOCK and _fits(c.workspace, limit):
                open_.setdefault(c.algorithm, {})[c.micro_batch] = c
                self._workspaces.setdefault(c.algorithm, {})[c.micro_batch] = c.workspace
        self._rows: _Rows = rows
        self._open: _Open = open_
        self._stock_ms = (
            None if whole is None or whole.median_ms is None else whole.median_ms / self._mini_batch
        )
        self._best_ms = min((ms for own in rows.values() for ms in own.values()), default=float("inf"))

    def next_candidate(self) -> Candidate | None:
        """Return the next candidate within the limit."""
        if self._stock_ms is not None and STOCK not in self._rows and STOCK_SLICE not in self._rows:
            slice_ = self._first_slice()  # undivided, STOCK exceeds the limit
            if slice_ is not None:
                return slice_
        if self._is_over_budget():
            return self._next_of_remainder()
        new = [own for name, own in self._open.items() if name not in self._rows and self._may_win(own)]
        if new:
            firsts = [own[_least_from(own, self._mini_batch // _PROBE)] for own in new]
            return min(firsts, key=lambda c: c.workspace / c.micro_batch)
        return self._next_larger() or self._next_smaller() or self._next_slice() or self._next_of_remainder()

    def _is_over_budget(self) -> bool:
        """Return whether the measurements took as much time as a race may take."""
        if not self._rows:
            return False
        spent = 0.0
        for own in self._rows.values():
            for size, ms in own.items():
                # A run that does not count comes first. It is the only one where it was hopeless.
                spent += ms * size * (1 if ms > 2 * self._best_ms else 2)
        return spent > _BUDGET * (self._stock_ms or self._best_ms) * self._mini_batch

    def _may_win(self, own: Mapping[int, Candidate]) -> bool:
        """Return whether filling its workspace alone leaves a new algorithm the time to win."""
        if self._race.bytes_per_ms is None:
            return True
        least = min(c.workspace / size for size, c in own.items()) / self._race.bytes_per_ms
        return least < self._best_ms

    def next_undivided(self) -> Candidate | None:
        """Return an algorithm to measure undivided: the rival that divisions are compared with."""
        n = self._mini_batch
        done = [own[n] for name, own in self._rows.items() if n in own and name != STOCK]
        hopes = {
            name: self._predict(name, n)
            for name, own in self._open.items()
            if n in own and name in self._rows
        }
        best = min(hopes, key=hopes.__getitem__, default=None)
        if best is None or (done and hopes[best] * _SECOND >= min(done)):
            return None
        return self._open[best][n]

    def _begun(self) -> list[tuple[str, Mapping[int, Candidate]]]:
        """Return the algorithms with a measurement, each with its candidates."""
        return [(name, own) for name, own in self._open.items() if name in self._rows]

    def _next_larger(self) -> Candidate | None:
        """Return the candidate with the best prediction of all sizes above the measured ones."""
        found, hope = None, self._best_ms * (1 - _GAIN)
        for name, own in self._begun():
            largest = max(self._rows[name])
            predicted = {size: self._predict(name, size) for size in own if size > largest}
            if not predicted or min(predicted.values()) >= hope:
                continue
            hope = min(predicted.values())
            if len(self._rows[name]) == 1:
                size = _least_from(predicted, 2 * largest)
            else:
                size = min(size for size, ms in predicted.items() if ms <= _NEARLY * hope)
            found = own[size]
        return found

    def _next_smaller(self) -> Candidate | None:
        """Return a size below the measured ones if these get better downwards, or were never left."""
        for name, own in self._begun():
            rows = sorted(self._rows[name].items())
            below = max((size for size in own if size < rows[0][0]), default=None)
            if below is None or rows[0][1] > _CLOSE * self._best_ms:
                continue
            if len(rows) < 2 or rows[0][1] < rows[1][1] * (1 + _GAIN):
                return own[below]
        return None

    def _next_slice(self) -> Candidate | None:
        """Return a slice of STOCK, unless an algorithm is far ahead of it."""
        if not self._slices or self._stock_ms is None or self._best_ms < _SLICES * self._stock_ms:
            return None
        open_ = {c.micro_batch: c for c in self._slices}
        own = self._rows.get(STOCK_SLICE)
        if not own:
            return self._first_slice()
        largest = max(own)
        above = [size for size in open_ if size > largest]
        if len(own) > 1 or not above or own[largest] > _CLOSE * self._best_ms:
            return None
        return open_[min(above, key=lambda size: abs(size - 4 * largest))]

    def _first_slice(self) -> Candidate | None:
        """Return a slice of STOCK of a medium size."""
        medium = self._mini_batch // 8
        return min(self._slices, key=lambda c: (abs(c.micro_batch - medium), c.micro_batch), default=None)

    def _next_of_remainder(self) -> Candidate | None:
        """Return the size for the samples that the best size leaves over; undivided if no size fits there."""
        n = self._mini_batch
        if any(
            n % size == 0 and ms == self._best_ms for own in self._rows.values() for size, ms in own.items()
        ):
            return None
        for name, own in self._begun():
            for size, ms in self._rows[name].items():
                if ms == self._best_ms and not any(known <= n % size for known in self._rows[name]):
                    fitting = [one for one in own if one <= n % size]
                    if fitting:
                        return own[max(fitting)]
        sizes = {size for own in self._rows.values() for size in own}
        if not sizes or any(n % size == 0 for size in sizes) or 1 in sizes:
            return None
        whole = [own[n] for name, own in self._begun() if n in own]
        return min(whole, key=lambda c: min(self._rows[c.algorithm].values()), default=None)

    def _predict(self, name: str, size: int) -> float:
        """Return the ms for one sample at a size above the measured ones."""
        rows = sorted(self._rows[name].items())
        last, last_ms = rows[-1]
        if len(rows) == 1:
            fixed = self._fixed_share(name, last)
            return last_ms * (fixed * last / size + 1 - fixed)
        before, before_ms = rows[-2]
        slope = (last_ms * last - before_ms * before) / (last - before)
        slope = max(slope, _LEAST_SLOPE * last_ms)
        return max(last_ms - slope, 0.0) * last / size + slope

    def _fixed_share(self, name: str, size: int) -> float:
        """Return the share of the workspace at a size that does not grow with the size."""
        known = self._workspaces[name]
        others = [other for other in known if other != size]
        if not others or not known[size]:
            return _LEAST_FIXED
        other = min(others, key=lambda one: abs(one - size))
        slope = (known[other] - known[size]) / (other - size)
        return min(1.0, max(_LEAST_FIXED, 1 - slope * size / known[size]))


def _fits(workspace: int, limit: int | None) -> bool:
    return limit is None or workspace <= limit


def _least_from(sizes: Collection[int], least: int) -> int:
    """Return the least of the sizes that is not below a number; the largest if there is none."""
    return min((size for size in sizes if size >= least), default=max(sizes))
