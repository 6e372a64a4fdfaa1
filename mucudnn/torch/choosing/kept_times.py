"""Keep the times of several ways to run a call in the cache, and measure them again in later processes.

Other programs may have disturbed the measurement, so times that 1, 2, 4, … processes have used are measured
again, as soon as that costs a small share of the time of these processes.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from mucudnn._native import UnfinishedError
from mucudnn.arrays.call import LogListener
from mucudnn.arrays.recent import Recent
from mucudnn.arrays.user_cache import user_cache
from mucudnn.costs.cache import Cache
from mucudnn.costs.checks import uses_to_next_check
from mucudnn.costs.records import Machine
from mucudnn.measuring.budget import current_budget
from mucudnn.problems.kernels import Kernel
from mucudnn.torch.operators import passes

Times = Mapping[str, float]
Key = tuple[Machine, Kernel, str]  # the arguments of `Cache.step_times`
_MOST_KEYS = 4096
# If our operators save less than this share of the predicted time, PyTorch's own run without a comparison.
LEAST_GAIN = 0.03
# The Python overhead of an operator. With that of a converted module's call (see `decision`) it is 0.06 ms
# without gradients and 0.18 ms with them, in a loop of equal calls on two cores of an EPYC (Zen 3). Networks
# pay more because other layers push the interpreter out of the caches. A GPU computes meanwhile.
OPERATOR_MS = 0.03
# A few rounds are enough because a converted model compares whole steps afterwards.
BUDGET_MS = 25.0


class KeptTimes:
    """The kept times that a process uses, and the checks that it has made.

    Only the first use of a process counts: the later ones are equal calls of the same program.
    """

    def __init__(self, clock: Callable[[], float] = time.process_time) -> None:
        """Take a clock that gives the seconds for which the process has run."""
        self._clock, self._checking_s = clock, 0.0
        self._used: Recent[Key, bool] = Recent(_MOST_KEYS)

    def find_or_measure(
        self,
        cache: Cache,
        key: Key,
        measure: Callable[[], Times],
        choose: Callable[[Times], str],
        check_ms: Callable[[Times], float],
        *,
        may_check: bool = True,
    ) -> Times:
        """Return the kept times if they are not due to be checked, else measure them and keep them.

        Return no times if there are none and the budget is spent. Measurements spend it.
        `choose` returns the way that times lead to, and `check_ms` the ms to measure them. If other programs
        disturb the measurement, `measure` returns no times, and earlier times stay.
        """
        kept = cache.step_times(*key)
        if kept and not may_check:
            return kept
        budget = current_budget()
        if budget.is_spent or (kept and not self._is_due(cache, key, check_ms(kept))):
            return kept
        self._used[key] = True
        if not kept:
            with budget.spending():
                times = measure()
            if times:
                cache.add_step_times(*key, times)
            return times
        checks, start = cache.add_uses(*key, 0).checks, self._clock()
        times = {}
        with budget.spending(), suppress(*passes.FAILURES, RuntimeError):
            times = measure()
        self._checking_s += self._clock() - start
        if times and choose(times) != choose(kept):
            cache.add_step_times(*key, times)
            return times
        # Confirmed times stay as they are, because Inductor's cache of compiled graphs depends on them.
        cache.reset_uses(*key, checks + bool(times))
        return kept

    def _is_due(self, cache: Cache, key: Key, check_ms: float) -> bool:
        if self._used[key]:
            return False
        self._used[key] = True
        uses, checks = cache.add_uses(*key, 1)
        check_ms += self._checking_s * 1e3
        return uses >= uses_to_next_check(check_ms, self._clock() * 1e3, 1, checks)


of_process = KeptTimes()


def find_or_compare(
    key: Key,
    measure: Callable[[], Times],
    choose: Callable[[Times], str],
    *,
    may_measure: bool,
) -> Times:
    """Return the times of a comparison in the user's cache, or make it, as `KeptTimes.find_or_measure` does.

    It takes at least BUDGET_MS. Return no times if the comparison may not be made, or fails. Raises
    UnfinishedError if a later call has to make it, because a paced budget has no time, or too little on a
    busy machine.
    """
    with user_cache(LogListener()) as cache:
        if not cache.step_times(*key):
            if not may_measure:
                return {}
            budget = current_budget()
            if budget.is_paced and budget.is_spent:
                raise UnfinishedError("there is no time to measure now")
        try:
            return of_process.find_or_measure(
                cache,
                key,
                measure,
                choose,
                check_ms=lambda times: max(BUDGET_MS, 2 * sum(times.values())),
                may_check=may_measure,
            )
        except UnfinishedError:
            raise
        except RuntimeError:  # such as a lack of memory
            return {}
