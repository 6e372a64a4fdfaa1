"""The check of a step's result: after many steps the ways are compared again.

A result may come from a moment in which other programs disturbed the steps, or in which the processor was
slow, without a clock that shows it. So a converted model compares its steps again after 128 steps, counted
over all processes that use the kept times, and after twice as many each time that the result is confirmed.
The slower ways of a comparison cost time, so it waits until that is a small share of the steps before it.

The cache identifies a step by a digest of the keys of its calls, in order, and of the settings that affect a
choice. It ignores the times that another version of mucudnn measured.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partialmethod
from typing import Any

from mucudnn import settings
from mucudnn._native import RunTime
from mucudnn.arrays.call import LogListener
from mucudnn.arrays.user_cache import user_cache
from mucudnn.arrays.views import TYPES
from mucudnn.costs.cache import Cache
from mucudnn.costs.checks import MOST_COST, uses_to_next_check
from mucudnn.costs.records import StepUses
from mucudnn.errors import MucudnnError, UsageError
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.shapes import problem_of
from mucudnn.torch.choosing.answers import CallKey
from mucudnn.torch.choosing.faster_way import most_steps_to_compare
from mucudnn.torch.choosing.trials import Key, Times, digest
from mucudnn.torch.tracing.recorder import DATA_TYPES

STEPS = 128  # the fewest steps from one check to the next
MOST_OVERSPENT = 2  # a check ends without a result if it takes this many times its share of the steps' time
_COUNT_MS = 2.0  # the time that it takes to count steps in the cache


class StepTimes:
    """The step times in the user's cache. An unusable cache has no times and keeps none."""

    def _ask(self, method: Callable[..., Any], calls: Sequence[CallKey], *arguments: Any) -> Any:
        """Return what a method of the cache returns for a step with these calls; None without a cache."""
        with suppress(MucudnnError), user_cache(LogListener()) as cache:
            return method(cache, *_identify(calls), *arguments)
        return None

    def find(self, calls: Sequence[CallKey]) -> Times:
        """Return the ms of a step with these calls by way; empty if no process has measured it."""
        return self._ask(Cache.step_times, calls) or {}

    def add_uses(self, calls: Sequence[CallKey], count: int) -> StepUses:
        """Count steps that ran by the kept times. Return all of them since the latest check."""
        return self._ask(Cache.add_uses, calls, count) or StepUses(count, 0)

    # Keep the ms of a step by way, after a number of checks that led to the same way.
    keep = partialmethod(_ask, Cache.add_step_times)
    # Reset the count of steps after a check that leaves the kept times as they are.
    reset_uses = partialmethod(_ask, Cache.reset_uses)
    # Delete the kept times, because a check contradicts them, so that a later process compares again.
    forget = partialmethod(_ask, Cache.forget_step_times)


def _identify(calls: Sequence[CallKey]) -> Key:
    """Return the machine, a forward pass of the step and the digest of all calls. Raise MucudnnError.

    The pass is that of the first call whose data type an engine supports; complex types are unsupported.
    """
    first = next((key for key in calls if DATA_TYPES.get(key.data_type) in TYPES), None)
    if first is None:
        raise UsageError("no engine supports a data type of this step")
    x = tuple(first.x) if len(first.x) == len(first.w) else (1, *first.x)
    padding = 0 if isinstance(first.padding, str) else first.padding
    problem = problem_of(
        DATA_TYPES[first.data_type], "nchw", x, tuple(first.w),
        first.stride, padding, first.dilation, first.groups,
    )  # fmt: skip
    chosen = settings.THREADS.read(), settings.BATCH_POLICY.read()
    step = digest((chosen, *(key.text() for key in calls)))
    return first.source.machine, Kernel(problem, "forward"), step


def median_ms(times: Mapping[str, Sequence[RunTime]]) -> dict[str, float]:
    """Return the median ms of the steps of each way, disturbed ones included."""
    return {way: statistics.median(step.wall_ms for step in steps) for way, steps in times.items()}


class StepCheck:
    """The result of similar steps, and the distance to its next check."""

    def __init__(
        self,
        result: str,
        calls: Sequence[CallKey],
        step_ms: Times,
        times: StepTimes | None,
        checks: int = 0,
        uses: int = 0,
    ) -> None:
        """Begin with a result that `checks` comparisons confirmed, and that `uses` steps followed since.

        `times` is the cache if it has the times of a step with these calls, else None.
        """
        self.result, self.calls, self.times, self.checks = result, calls, times, checks
        self._step_ms = step_ms
        self._own = 0  # steps by the result in this process
        self._uses, self._uncounted = uses, 0  # steps in all processes, and those that the cache lacks
        self._distance, self._count_after = self._distances()

    def note_step(self) -> bool:
        """Note a step that runs by the result. Return whether a check of the result begins with it.

        A process checks in its first steps, or after many, because a check that the process does not complete
        is lost.
        """
        self._own += 1
        self._uses += 1
        self._uncounted += 1
        is_due = self._uses >= self._distance and (self._own == 1 or self._own >= STEPS)
        if self.times is None:
            return is_due
        if is_due or self._uncounted >= self._count_after:
            # Another process may have checked the result meanwhile.
            self._uses, _ = self.times.add_uses(self.calls, self._uncounted)
            self._count_after, self._uncounted = 2 * self._count_after, 0
            is_due = is_due and self._uses >= self._distance
        if is_due:
            # Other processes need not check, too, and nothing repeats the check if this process ends early.
            self.times.reset_uses(self.calls, self.checks)
        return is_due

    def is_overspent(self, times: Mapping[str, Sequence[RunTime]]) -> bool:
        """Return whether a check with these steps so far takes too much of the time of the steps before it.

        It does if the kept times hide how slow another way is, or if a busy machine keeps it from an end.
        """
        own_ms = median_ms(times).get(self.result)
        if own_ms is None:
            return False
        others = [step.wall_ms for way, steps in times.items() if way != self.result for step in steps]
        lost_ms = sum(others) - len(others) * own_ms
        return lost_ms > MOST_OVERSPENT * MOST_COST * self._distance * own_ms

    def confirm(self, step_ms: Times, *, is_counted: bool) -> None:
        """Go on with the result after a check. It counts unless other programs disturbed it.

        `step_ms` is the ms of a step by way in the check. Without all of them the earlier ones stay.
        """
        if step_ms.keys() >= self._step_ms.keys():
            self._step_ms = step_ms
        self.checks += is_counted
        self._own = self._uses = self._uncounted = 0
        self._distance, self._count_after = self._distances()
        if self.times is not None:
            self.times.reset_uses(self.calls, self.checks)

    def _distances(self) -> tuple[float, float]:
        """Return the steps to the next check, and the steps after which the cache counts them."""
        own_ms = self._step_ms[self.result]
        check_ms = sum(
            (ms - own_ms) * most_steps_to_compare(ms / own_ms) for ms in self._step_ms.values() if ms > own_ms
        )
        distance = uses_to_next_check(check_ms, own_ms, STEPS, self.checks)
        return distance, uses_to_next_check(_COUNT_MS, own_ms, 1)
