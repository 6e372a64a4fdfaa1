"""The times of whole steps in the cache, so that a later process does not compare again.

The cache identifies a step by a digest of the keys of its calls, in order, and of the settings that affect a
choice. It ignores the times that another version of mucudnn measured.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from mucudnn import settings
from mucudnn.arrays.call import LogListener
from mucudnn.arrays.user_cache import user_cache
from mucudnn.arrays.views import TYPES
from mucudnn.costs.records import Machine, StepUses
from mucudnn.errors import MucudnnError, UsageError
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.shapes import problem_of
from mucudnn.torch.choosing.answers import CallKey
from mucudnn.torch.tracing.recorder import DATA_TYPES

CHOICES, STOCK_WAY, MIXTURE = "choices", "stock", "mixture"  # the ways in which a step runs


class StepTimes:
    """The step times in the user's cache. An unusable cache has no times and keeps none."""

    def find(self, calls: Sequence[CallKey]) -> Mapping[str, float]:
        """Return the ms of a step with these calls by way; empty if no process has measured it."""
        with suppress(MucudnnError), user_cache(LogListener()) as cache:
            return cache.step_times(*_identify(calls))
        return {}

    def keep(self, calls: Sequence[CallKey], times: Mapping[str, float], checks: int = 0) -> None:
        """Keep the ms of a step with these calls by way, after this many checks that led to the same way."""
        with suppress(MucudnnError), user_cache(LogListener()) as cache:
            cache.add_step_times(*_identify(calls), times, checks)

    def add_uses(self, calls: Sequence[CallKey], count: int) -> StepUses:
        """Count steps that ran by the kept times. Return all of them since the latest check."""
        with suppress(MucudnnError), user_cache(LogListener()) as cache:
            return cache.add_uses(*_identify(calls), count)
        return StepUses(count, 0)

    def reset_uses(self, calls: Sequence[CallKey], checks: int) -> None:
        """Reset the count of steps after a check that leaves the kept times as they are."""
        with suppress(MucudnnError), user_cache(LogListener()) as cache:
            cache.reset_uses(*_identify(calls), checks)

    def forget(self, calls: Sequence[CallKey]) -> None:
        """Delete the kept times, because a check contradicts them, so that a later process compares again."""
        with suppress(MucudnnError), user_cache(LogListener()) as cache:
            cache.forget_step_times(*_identify(calls))


def digest(parts: Iterable[object]) -> str:
    """Return a short text that differs if the texts of the parts do."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


def _identify(calls: Sequence[CallKey]) -> tuple[Machine, Kernel, str]:
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
