"""The times of whole steps in the cache, so that a later process does not compare again.

A step is told apart by its calls, in their order, with everything that their keys have, and by the settings
that change a choice. What another version of mucudnn measured is not found.
"""

import hashlib
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from mucudnn import settings
from mucudnn.arrays.call import LogListener
from mucudnn.arrays.user_cache import user_cache
from mucudnn.arrays.views import TYPES
from mucudnn.costs.records import Machine
from mucudnn.errors import MucudnnError, UsageError
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.shapes import problem_of
from mucudnn.torch.tracing.recorder import DATA_TYPES


class StepTimes:
    """The user's cache as the memory of a judge. A cache that cannot be used has no times, and keeps none."""

    def find(self, calls: Sequence[Hashable]) -> Mapping[str, float]:
        """Return the ms of a step with these calls by the way it ran; nothing if no process measured it."""
        try:
            with user_cache(LogListener()) as cache:
                return cache.step_times(*_identify(calls))
        except MucudnnError:
            return {}

    def keep(self, calls: Sequence[Hashable], times: Mapping[str, float]) -> None:
        """Keep the ms of a step with these calls by the way it ran."""
        try:
            with user_cache(LogListener()) as cache:
                cache.add_step_times(*_identify(calls), times)
        except MucudnnError:
            pass


def _identify(calls: Sequence[Hashable]) -> tuple[Machine, Kernel, str]:
    """Return the machine, a forward pass of the step and the digest of all calls. Raise MucudnnError.

    The pass is that of the first call whose data type an engine has: complex ones, for example, have none.
    """
    known: Any = calls
    first = next((call for call in known if DATA_TYPES.get(call[3]) in TYPES), None)
    if first is None:
        raise UsageError("an engine has none of the data types of this step")
    (_, stride, padding, dilation, groups, _), x, _, dtype, _, w, *_, source = first
    batched = tuple(x) if len(x) == len(w) else (1, *x)
    padding = 0 if isinstance(padding, str) else padding
    problem = problem_of(DATA_TYPES[dtype], "nchw", batched, tuple(w), stride, padding, dilation, groups)
    chosen = settings.THREADS.read(), settings.BATCH_POLICY.read()
    text = "\n".join(map(str, (chosen, *map(_text, calls))))
    return source.machine, Kernel(problem, "forward"), hashlib.sha256(text.encode()).hexdigest()[:16]


def _text(call: Any) -> str:
    """Return a text that is equal for equal calls in any process, without the machine."""
    (_, *options), *values, _ = call  # the first value is the module's settings, the last one the source
    return repr((options, values))
