"""Memory plans within DistributedDataParallel give the parameters of training without a plan."""

from __future__ import annotations

import memory_cases as cases
import needs_torch  # noqa: F401
import pytest
import worlds


@pytest.mark.parametrize("policy", ["all", "joint"])
@pytest.mark.parametrize("is_wrapped_first", [False, True], ids=["planned first", "wrapped first"])
def test_ranks_under_a_plan_train_as_without_it(policy: str, is_wrapped_first: bool) -> None:
    for is_equal, copies in worlds.run(2, cases.train, policy, is_wrapped_first):
        assert is_equal
        assert policy == "joint" or copies > 0
