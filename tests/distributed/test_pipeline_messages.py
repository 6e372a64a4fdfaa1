"""Stages pass any dense tensors, and if a rank cannot go on, all ranks raise an error."""

from __future__ import annotations

from functools import cache

import needs_torch  # noqa: F401
import pipeline_failures as failures
import pipeline_stages
import pytest
import worlds


@cache
def differences(schedule: str) -> list[dict[str, str]]:
    """Return the differences between models in stages and undivided models, on each rank."""
    on_ranks: list[dict[str, str]] = worlds.run(3, pipeline_stages.compare_all, schedule)
    return on_ranks


@cache
def failures_of(schedule: str) -> list[dict[str, tuple[list[str], list[float], bool]]]:
    """Return the results of all failures, on each rank."""
    on_ranks: list[dict[str, tuple[list[str], list[float], bool]]] = worlds.run(
        3, failures.fail_all, schedule
    )
    return on_ranks


@pytest.mark.parametrize("schedule", ["1f1b", "1f1b, recompute", "gems"])
@pytest.mark.parametrize("name", pipeline_stages.MODELS)
def test_a_pipeline_trains_a_model(name: str, schedule: str) -> None:
    for on_rank in differences(schedule):
        assert on_rank.get(name, "") == ""


NAMED = "the output of stage 1"
MESSAGES = {
    "sparse": f"UsageError: {NAMED} has the layout torch.sparse_coo: stages pass dense tensors",
    "meta": f"UsageError: {NAMED} is on meta: a stage on cpu passes tensors on cpu",
    "text": f"UsageError: {NAMED} is a str: stages pass tensors, or tuples or dicts of tensors",
    "nothing": f"UsageError: {NAMED} is empty: stages pass tensors, or tuples or dicts of tensors",
    "changed": f"UsageError: {NAMED} was changed in place after the stage returned it",
    "forward": "ZeroDivisionError: the stage divides by zero",
    "first forward": "ZeroDivisionError: the stage divides by zero",
    "backward": "ZeroDivisionError: the gradient divides by zero",
}


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
@pytest.mark.parametrize("kind", failures.FAILURES)
def test_a_stage_that_fails_is_an_error_on_every_rank_and_the_next_step_works(
    kind: str, schedule: str
) -> None:
    for rank, results in enumerate(failures_of(schedule)):
        (error,), losses, are_kept = results[kind]
        name, _, text = MESSAGES[kind].partition(": ")
        if rank == 1:
            assert error.startswith(f"{name}: {text}")
        else:
            assert error.startswith(("UsageError: rank 1 failed: ", "MucudnnError: rank 1 failed: "))
            assert text in error
        assert "of micro-batch" in error
        assert losses[0] == losses[1]
        assert are_kept


def test_a_mini_batch_of_another_size_on_one_rank_is_an_error_on_every_rank() -> None:
    for error, loss in worlds.run(3, failures.give_another_batch):
        assert "the ranks [0, 1, 2] of a pipeline have mini-batches of 15 to 16 samples" in error
        assert float(loss) > 0


def test_a_rank_that_runs_no_step_is_an_error_on_the_others() -> None:
    *waiting, away = worlds.run(3, failures.stay_away)
    assert away == "stayed away"
    for error in waiting:
        assert "another rank has failed or stopped" in error
