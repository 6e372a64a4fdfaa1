"""A pipeline has stages and a schedule, and every rank raises an error in its arguments."""

from __future__ import annotations

import needs_torch  # noqa: F401
import pipeline_cases as cases
import pytest
import worlds


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("stages", "UsageError: the model has 3 stages and the mesh 2 ranks along 'pipe'"),
        ("shapes", "in the forward of micro-batch 0 in stage 1 with (4, 6) torch.float64 and (4, 6)"),
        (
            "batch",
            "UsageError: the inputs and targets have no samples: leave out empty mini-batches on all ranks",
        ),
        ("targets", "UsageError: the inputs and targets have different numbers of samples: [6, 8]"),
        ("schedule", "UsageError: there is no schedule 'zigzag': give auto, layers, gems"),
        ("replications", "UsageError: replications is 0, must be at least 1"),
        ("meta", "is on the meta device, and this rank holds it: make it real"),
        ("memory", "NothingFitsError: no schedule of 2 stages fits 100 bytes on each rank"),
        ("costs", 'UsageError: schedule="auto" needs the costs that split measures: name a schedule'),
    ],
)
def test_a_wrong_argument_is_an_error_on_every_rank(change: str, message: str) -> None:
    for text in worlds.run(2, cases.error_of, 2, change):
        assert message in text


def test_a_message_that_cannot_even_start_is_an_error_that_names_it() -> None:
    first, last = worlds.run(2, cases.fail_to_start, 2)
    assert first.startswith("rank 0 of the pipeline sent the forward of micro-batch 0")
    assert last.startswith("rank 1 of the pipeline waited for the forward of micro-batch 0")
    assert "another rank has failed or stopped (Connection closed by peer)" in first
    assert "another rank has failed or stopped (" in last


def test_auto_takes_the_fastest_schedule_that_fits_and_all_ranks_agree() -> None:
    choices = worlds.run(2, cases.choose, 2)
    assert choices[0] == choices[1]
    fastest, leanest = choices[0]
    assert fastest in {"gpipe", "1f1b", "bidirectional"}
    assert leanest != "bidirectional"
