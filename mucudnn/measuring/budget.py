"""The time that measurements may take. The best choices so far are made when it is over."""

import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ClassVar

from mucudnn import settings
from mucudnn.errors import UsageError, shown

# A program's measurements take this many times as long as its own work at most, or as this much of a pause.
# Its first steps are then about 5 times as slow as PyTorch's.
_SHARE, _MOST_S = 1.5, 5.0
# The seconds to earn before measurements begin. Finding out what to measure takes milliseconds, on which
# short steps would otherwise spend all that they earn.
_LEAST_S = 0.05
_SECONDS = {"ms": 1e-3, "s": 1.0, "": 1.0, "min": 60.0, "h": 3600.0}
_TIME = re.compile(r"(\d{1,9}(?:\.\d{1,9})?)\s*([a-z]*)", re.ASCII)


def parse_budget(text: str) -> float:
    """Return the seconds that a text gives, such as `30s`, `2min` or `none` (no end). Raises UsageError."""
    if text.strip() == "none":
        return math.inf
    match = _TIME.fullmatch(text.strip())
    if match is None or match[2] not in _SECONDS:
        raise UsageError(
            f"{shown(text)} is not a budget: give seconds, or a number with ms, s, min or h, such as 30s, or "
            "none"
        )
    return float(match[1]) * _SECONDS[match[2]]


def spell_budget(seconds: float) -> str:
    """Write a budget in the form that a flag takes: `30s`, `none`."""
    return "none" if math.isinf(seconds) else f"{seconds:g}s"


class Budget:
    """The seconds that measurements may take, and those that they took so far."""

    is_paced: ClassVar[bool] = False

    def __init__(self, seconds: float = math.inf, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = seconds
        self.is_reported = False  # True once the user knows that the budget is spent
        self._clock, self._spent_s = clock, 0.0
        self._since: float | None = None  # None while nothing is measured

    @property
    def is_spent(self) -> bool:
        """True if only what a choice cannot do without may still be measured."""
        return self._spent_s + self._running_s >= self.seconds

    @property
    def _running_s(self) -> float:
        since = self._since  # another thread may end its block
        return 0.0 if since is None else self._clock() - since

    @property
    def most_wait_ms(self) -> float:
        """The ms that a measurement may wait until nothing disturbs it."""
        return math.inf

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time of the block, unless a block around it is counted already."""
        if self._since is not None:
            yield
            return
        self._since = start = self._clock()
        try:
            yield
        finally:  # another thread may have ended its block meanwhile
            self._spent_s += self._clock() - start
            self._since = None

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let benches that are made in the block have this budget."""
        token = _applied.set(self)
        try:
            yield
        finally:
            _applied.reset(token)


class PacedBudget(Budget):
    """A budget that grows while a program works, so that its steps do not wait long for measurements.

    What it has no time for is not measured yet, not even what a choice cannot do without: the program runs
    something else meanwhile. A block of measurements measures only if enough was earned when it began.
    """

    is_paced: ClassVar[bool] = True

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        super().__init__(0.0, clock)
        self.is_reported = True
        self._last: float | None = None  # the end of the latest measurements, or the latest call
        self._may_measure = False

    @property
    def is_spent(self) -> bool:
        """True if this block of measurements must end or, between blocks, if the next may not begin."""
        if self._since is None:
            return self.seconds - self._spent_s < _LEAST_S
        return not self._may_measure or super().is_spent

    @property
    def most_wait_ms(self) -> float:
        """The ms that are left. A measurement that is still disturbed then is made again in a later block."""
        return max(self.seconds - self._spent_s - self._running_s, 0.0) * 1e3

    def note_call(self) -> None:
        """Note a call of the program, whose work since the latest one earns time for measurements."""
        now = self._clock()
        if self._last is not None:
            # A pause, as in a notebook, must not lead to a long wait.
            self.seconds += _SHARE * min(now - self._last, _MOST_S)
        self._last = now

    @contextmanager
    def spending(self) -> Iterator[None]:
        """Count the time of the block, which is not the program's own."""
        if self._since is None:
            self._may_measure = not self.is_spent
        try:
            with super().spending():
                yield
        finally:
            self._last = self._clock()

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Let benches that are made in the block have this budget, and count the time of the block."""
        with self.spending(), super().applied():
            yield


_applied: ContextVar[Budget | None] = ContextVar("mucudnn_budget", default=None)
_of_process: dict[str, Budget] = {}  # keys are texts of MUCUDNN_BUDGET


def applied_budget() -> Budget | None:
    """Return the budget of the block that decides now; None outside of such blocks."""
    return _applied.get()


def current_budget() -> Budget:
    """Return the budget that applies, by default that of the process in MUCUDNN_BUDGET. Raises UsageError."""
    applied = _applied.get()
    if applied is not None:
        return applied
    text = settings.BUDGET.read()
    budget = _of_process.get(text)
    if budget is None:
        try:
            budget = _of_process[text] = Budget(parse_budget(text))
        except UsageError as error:
            raise UsageError(f"{settings.BUDGET.variable}: {error}") from None
    return budget
