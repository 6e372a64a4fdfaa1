"""Trials: comparisons of several ways to do the same work, a call or a step, whose times the cache keeps.

Other programs may have disturbed a trial, or the processor was slow without a clock that shows it. So the
ways are compared again after some uses of the times, and after twice as many each time that the result is
confirmed, but only once that costs a small share of the time of these uses. A process uses the times of a
call once, because the later uses are equal calls of the same program. Measurements spend the budget.

The cache identifies a step by a digest of the keys of its calls, in order, and of the settings that affect a
choice. It ignores the times that another version of mucudnn measured.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from mucudnn import settings
from mucudnn._native import MOST_ROUNDS, UnfinishedError, second_lowest
from mucudnn.arrays.call import LogListener
from mucudnn.arrays.recent import Recent
from mucudnn.arrays.user_cache import user_cache
from mucudnn.arrays.views import TYPES
from mucudnn.costs.checks import uses_to_next_check
from mucudnn.costs.records import Machine, StepUses
from mucudnn.errors import MucudnnError
from mucudnn.measuring.budget import current_budget
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.shapes import problem_of
from mucudnn.torch.choosing.answers import CallKey
from mucudnn.torch.operators import device_times, passes
from mucudnn.torch.tracing.recorder import DATA_TYPES

Times = Mapping[str, float]
Key = tuple[Machine, Kernel, str]  # the arguments of `Cache.step_times`
CHOICES, STOCK_WAY, MIXTURE = "choices", "stock", "mixture"  # the ways in which a call or a step runs
STEPS = 128  # the fewest steps from one check to the next
_MOST_KEYS = 4096
# A few rounds are enough because a converted model compares whole steps afterwards.
WAYS_MS = 25.0


class Trial:
    """The kept times of several ways to do the same work, and their uses so far.

    A trial without a key, or without a cache that can be used, has no times at first, and keeps them only in
    this process.
    """

    def __init__(
        self,
        key: Key | None,
        choose: Callable[[Times], str],
        open_cache: Callable[[LogListener], AbstractContextManager[Any]] = user_cache,
    ) -> None:
        """Look the times up. `choose` returns the way that times lead to, empty if some are missing."""
        self._key, self._open = key, open_cache
        self.times: Times = self._ask("step_times") or {}
        self.choice = choose(self.times) if self.times else ""
        uses: StepUses = self._ask("add_uses", 0) or StepUses(0, 0)
        self._uses, self.checks = uses
        self._own = self._uncounted = 0  # the uses in this process, and those that the cache lacks

    def _ask(self, method: str, *arguments: Any) -> Any:
        """Return what a method of the cache returns for this trial; None without a key or a cache."""
        with suppress(MucudnnError):
            if self._key is not None:
                with self._open(LogListener()) as cache:
                    return getattr(cache, method)(*self._key, *arguments)
        return None

    def note_use(self, distance: float) -> bool:
        """Note a use of the times. Return whether to compare the ways now, after `distance` uses.

        A process compares at its first use, or after many, because a comparison that the process does not
        complete is lost.
        """
        self._own += 1
        self._uses += 1
        self._uncounted += 1
        is_due = self._uses >= distance and (self._own == 1 or self._own >= STEPS)
        if is_due or not self._own & (self._own + 1):  # the cache takes 2 ms, so count seldom
            # Another process may have compared the ways meanwhile.
            self._uses, _ = self._ask("add_uses", self._uncounted) or (self._uses, 0)
            self._uncounted = 0
            is_due = is_due and self._uses >= distance
        if is_due:
            # Other processes need not compare, too, and nothing repeats it if this process ends early.
            self._ask("reset_uses", self.checks)
        return is_due

    def settle(self, times: Times, choice: str, *, is_disturbed: bool) -> None:
        """Keep the times of a comparison and the way that it chose.

        Earlier times stay if they lead to the same way, or if other programs disturbed the comparison.
        """
        if not self.choice or not (is_disturbed or choice == self.choice):
            self.times, self.choice, self.checks = times, choice, 0
        else:
            self.checks += not is_disturbed
        if is_disturbed:
            self._ask("reset_uses", self.checks)
        else:
            self._ask("add_step_times", self.times, self.checks)
        self._uses = self._own = self._uncounted = 0


class CallTrials:
    """The trials of calls that a process has used, and the time that it spent to check them."""

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        """Take a clock that gives the seconds for which the process has run."""
        self._clock, self._checking_s = clock, 0.0
        self._used: Recent[Key, bool] = Recent(_MOST_KEYS)

    def find_or_measure(
        self,
        key: Key,
        measure: Callable[[], Times],
        choose: Callable[[Times], str],
        check_ms: Callable[[Times], float] | None = None,
        *,
        may_measure: bool = True,
    ) -> Times:
        """Return the kept times unless the trial is due, else measure them and keep them.

        Return no times if there are none and they may not be measured, the budget is spent, or the trial
        fails. `choose` returns the way that times lead to, and `check_ms` the ms to measure them; without it
        no trial with times is due. If other programs disturb the trial, `measure` returns no times, and
        earlier times stay. Raises UnfinishedError for a trial that a later call has to make, because a paced
        budget has no time, or too little on a busy machine.
        """
        trial = Trial(key, choose)
        if not may_measure:
            return trial.times
        budget, is_new = current_budget(), not trial.times
        if budget.is_spent and budget.is_paced and is_new:
            raise UnfinishedError("there is no time to measure now")
        if budget.is_spent:
            return trial.times
        is_used, self._used[key] = self._used[key], True
        if not is_new:
            if is_used or check_ms is None:
                return trial.times
            cost_ms = check_ms(trial.times) + self._checking_s * 1e3
            if not trial.note_use(uses_to_next_check(cost_ms, self._clock() * 1e3, 1, trial.checks)):
                return trial.times
        times: Times = {}
        start = self._clock()
        try:
            with budget.spending():
                times = measure()
        except (*passes.FAILURES, RuntimeError) as error:  # such as a lack of memory
            if isinstance(error, UnfinishedError) and is_new:
                raise
        if not is_new:
            self._checking_s += self._clock() - start
        if times or not is_new:
            trial.settle(times, choose(times) if times else "", is_disturbed=not times)
        return trial.times


of_process = CallTrials()


def time_ways(device: str, ways: Mapping[str, Callable[[], object]]) -> Times:
    """Return the ms of ways to run a call, interleaved; none if all were disturbed."""
    times = device_times.time_interleaved(device, [*ways.values()], MOST_ROUNDS, WAYS_MS)
    return {} if times.is_busy else dict(zip(ways, map(second_lowest, times.times_ms), strict=True))


def key_of_step(calls: Sequence[CallKey]) -> Key | None:
    """Return the machine, a forward pass of a step and the digest of all its calls.

    The pass is that of the first call whose data type an engine supports. Return None if there is none;
    complex types are unsupported.
    """
    first = next((key for key in calls if DATA_TYPES.get(key.data_type) in TYPES), None)
    if first is None:
        return None
    x = tuple(first.x) if len(first.x) == len(first.w) else (1, *first.x)
    padding = 0 if isinstance(first.padding, str) else first.padding
    with suppress(MucudnnError):
        problem = problem_of(
            DATA_TYPES[first.data_type], "nchw", x, tuple(first.w),
            first.stride, padding, first.dilation, first.groups,
        )  # fmt: skip
        chosen = settings.THREADS.read(), settings.BATCH_POLICY.read()
        step = digest((chosen, *(key.text() for key in calls)))
        return first.source.machine, Kernel(problem, "forward"), step
    return None


def digest(parts: Iterable[object]) -> str:
    """Return a short text that differs if the texts of the parts do."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
