"""A rank that is killed at any moment, even as a pipeline is made, is a clear error on every other rank.

TEST_SEED=7     begin with case 7
TEST_CASES=500  run that many cases
"""

from __future__ import annotations

from random import Random

import dying_ranks
import needs_torch  # noqa: F401
import pytest
import worlds
from random_cases import cases


@pytest.mark.parametrize("seed", cases(5))
def test_a_killed_rank_is_an_error_on_every_other_rank(seed: int) -> None:
    random = Random(f"dying ranks {seed}")
    make, how = random.choice(
        [(dying_ranks.stages_in, name) for name in ("1f1b", "gems")]
        + [(dying_ranks.divided, "2"), (dying_ranks.cut, "2")]
    )
    world = 2 if how == "gems" else random.choice((2, 3, 4))
    is_step = random.random() < 0.5
    victim, share = random.randrange(world), random.uniform(0.001, 1)
    outcomes = worlds.outcomes_of(world, dying_ranks.repeat, make, how, is_step, victim, share)
    assert outcomes.pop(victim).error == "the rank ended with -9"
    for outcome in outcomes:
        assert outcome.error is None
        assert "another rank" in outcome.value
        assert "failed or stopped" in outcome.value or "has ended" in outcome.value
