"""Trials: comparisons of several ways to run a call, whose times the cache keeps.

Other programs may have disturbed a trial, so it is due again after 1, 2, 4, … processes have used its times,
as soon as it costs a small share of the time of these processes. Measurements spend the budget.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial

from mucudnn._native import MOST_ROUNDS, Problem, UnfinishedError, second_lowest
from mucudnn.arrays.call import LogListener
from mucudnn.arrays.recent import Recent
from mucudnn.arrays.user_cache import user_cache
from mucudnn.costs.cache import Cache
from mucudnn.costs.checks import uses_to_next_check
from mucudnn.costs.records import Machine
from mucudnn.measuring.budget import current_budget
from mucudnn.problems.kernels import Kernel
from mucudnn.torch.choosing.answers import CallKey
from mucudnn.torch.operators import device_times, passes

Times = Mapping[str, float]
Key = tuple[Machine, Kernel, str]  # the arguments of `Cache.step_times`
CHOICES, STOCK_WAY, MIXTURE = "choices", "stock", "mixture"  # the ways in which a call or a step runs
_MOST_KEYS = 4096
# If our operators save less than this share of the predicted time, PyTorch's own run without a comparison.
LEAST_GAIN = 0.03
# The Python overhead of an operator. With that of a converted module's call (see `decision`) it is 0.06 ms
# without gradients and 0.18 ms with them, in a loop of equal calls on two cores of an EPYC (Zen 3). Networks
# pay more because other layers push the interpreter out of the caches. A GPU computes meanwhile.
OPERATOR_MS = 0.03
# A few rounds are enough because a converted model compares whole steps afterwards.
_BUDGET_MS = 25.0


class Trials:
    """The trials whose times a process uses.

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
        may_measure: bool = True,
    ) -> Times:
        """Return the kept times unless the trial is due, else measure them and keep them.

        Return no times if there are none and they may not be measured, the budget is spent, or the trial
        fails. `choose` returns the way that times lead to, and `check_ms` the ms to measure them. If other
        programs disturb the trial, `measure` returns no times, and earlier times stay. Raises UnfinishedError
        for a trial that a later call has to make, because a paced budget has no time, or too little on a busy
        machine.
        """
        kept, checks = cache.step_times(*key), 0
        if not may_measure:
            return kept
        budget = current_budget()
        if budget.is_spent and budget.is_paced and not kept:
            raise UnfinishedError("there is no time to measure now")
        if budget.is_spent:
            return kept
        is_used, self._used[key] = self._used[key], True
        if kept:
            if is_used:
                return kept
            uses, checks = cache.add_uses(*key, 1)
            cost_ms = check_ms(kept) + self._checking_s * 1e3
            if uses < uses_to_next_check(cost_ms, self._clock() * 1e3, 1, checks):
                return kept
        times: Times = {}
        start = self._clock()
        try:
            with budget.spending():
                times = measure()
        except (*passes.FAILURES, RuntimeError) as error:  # such as a lack of memory
            if isinstance(error, UnfinishedError) and not kept:
                raise
        if kept:
            self._checking_s += self._clock() - start
        if times and (not kept or choose(times) != choose(kept)):
            cache.add_step_times(*key, times)
            return times
        if kept:  # confirmed times stay, because Inductor's cache of compiled graphs depends on them
            cache.reset_uses(*key, checks + bool(times))
        return kept


of_process = Trials()


def compare(
    key: CallKey,
    problem: Problem,
    ways: Mapping[str, Callable[[], object]],
    algorithms: Iterable[object],
    overhead_ms: float,
    *,
    may_measure: bool,
) -> tuple[Times, float]:
    """Return the ms of two ways to run a call, and the share of the first way's time that the second saves.

    The second way has an overhead that its times lack. `algorithms` identify what both run. Return no times
    as `Trials.find_or_measure` does, and raise what it raises.
    """
    present, other = ways

    def gain_by(times: Times) -> float:
        return 1 - (times[other] + overhead_ms) / times[present]

    with user_cache(LogListener()) as cache:
        times = of_process.find_or_measure(
            cache,
            (key.source.machine, Kernel(problem, "forward"), digest(algorithms)),
            partial(time_ways, key.device, ways),
            choose=lambda times: other if gain_by(times) >= LEAST_GAIN else present,
            check_ms=lambda times: max(_BUDGET_MS, 2 * sum(times.values())),
            may_measure=may_measure,
        )
    return times, gain_by(times) if times else 0.0


def time_ways(device: str, ways: Mapping[str, Callable[[], object]]) -> Times:
    """Return the ms of ways to run a call, interleaved; none if all were disturbed."""
    times = device_times.time_interleaved(device, [*ways.values()], MOST_ROUNDS, _BUDGET_MS)
    return {} if times.is_busy else dict(zip(ways, map(second_lowest, times.times_ms), strict=True))


def digest(parts: Iterable[object]) -> str:
    """Return a short text that differs if the texts of the parts do."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]
