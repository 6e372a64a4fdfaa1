"""The times of whole steps in the cache, so that a later process does not compare again.

The cache knows a step by the digest of its calls, in their order, with everything that their keys have, and
of the settings that change a choice. It does not find what another version of mucudnn measured.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from mucudnn import settings
from mucudnn.arrays.call import LogListener
from mucudnn.arrays.user_cache import user_cache
from mucudnn.arrays.views import TYPES
from mucudnn.costs.records import Machine
from mucudnn.errors import MucudnnError, UsageError
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.shapes import problem_of
from mucudnn.torch.choosing.answers import CallKey
from mucudnn.torch.tracing.recorder import DATA_TYPES

CHOICES, STOCK_WAY, MIXTURE = "choices", "stock", "mixture"  # the ways in which a step runs


class StepTimes:
    """The step times in the user's cache. A cache that cannot be used has no times, and keeps none."""

    def find(self, calls: Sequence[CallKey]) -> Mapping[str, float]:
        """Return the ms of a step with these calls by the way it ran; nothing if no process measured it."""
        with suppress(MucudnnError), user_cache(LogListener()) as cache:
            return cache.step_times(*_identify(calls))
        return {}

    def keep(self, calls: Sequence[CallKey], times: Mapping[str, float]) -> None:
        """Keep the ms of a step with these calls by the way it ran."""
        with suppress(MucudnnError), user_cache(LogListener()) as cache:
            cache.add_step_times(*_identify(calls), times)


def digest(parts: Iterable[object]) -> str:
    """Return a short text that differs where the texts of the parts differ."""
    return hashlib.sha256("\n".join(map(str, parts)).encode()).hexdigest()[:16]


def _identify(calls: Sequence[CallKey]) -> tuple[Machine, Kernel, str]:
    """Return the machine, a forward pass of the step and the digest of all calls. Raise MucudnnError.

    The pass is that of the first call whose data type an engine has: complex ones, for example, have none.
    """
    first = next((key for key in calls if DATA_TYPES.get(key.data_type) in TYPES), None)
    if first is None:
        raise UsageError("an engine has none of the data types of this step")
    x = tuple(first.x) if len(first.x) == len(first.w) else (1, *first.x)
    padding = 0 if isinstance(first.padding, str) else first.padding
    problem = problem_of(
        DATA_TYPES[first.data_type], "nchw", x, tuple(first.w),
        first.stride, padding, first.dilation, first.groups,
    )  # fmt: skip
    chosen = settings.THREADS.read(), settings.BATCH_POLICY.read()
    step = digest((chosen, *(key.text() for key in calls)))
    return first.source.machine, Kernel(problem, "forward"), step
