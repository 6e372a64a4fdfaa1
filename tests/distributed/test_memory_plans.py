"""Within DistributedDataParallel, planned and converted models train as PyTorch's own do."""

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


@pytest.mark.parametrize("is_wrapped_first", [False, True], ids=["converted first", "wrapped first"])
def test_ranks_train_a_converted_model_as_pytorchs_own(is_wrapped_first: bool) -> None:
    worlds.run(2, cases.converted, is_wrapped_first)
