"""The seed and the number of cases of every random test: TEST_SEED and TEST_CASES in the environment.

A case is its seed: the same number makes the same case. `tests/fuzz/run` sets both variables.
"""

import os

from hypothesis import settings


def cases(usual: int, first: int = 0) -> range:
    """Return the seeds of a test's cases: `usual` of them from `first` on, or as the environment says."""
    begin = int(os.environ.get("TEST_SEED") or first)
    return range(begin, begin + int(os.environ.get("TEST_CASES") or usual))


def examples(usual: int) -> int:
    """Return the share of the usual number of hypothesis' examples that its profile asks for."""
    return usual * settings.default.max_examples // 100
