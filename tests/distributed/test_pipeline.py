"""A pipeline trains as the undivided model does, on real processes, and an error reaches all of them."""

from __future__ import annotations

import needs_torch  # noqa: F401
import pipeline_cases as cases
import pytest
import torch
import worlds

SAMPLES = 8
STEPS = 3


@pytest.mark.parametrize(
    ("schedule", "depth", "data", "replications"),
    [
        ("gems", 4, 1, 2),
        ("gems", 2, 2, 1),
        ("bidirectional", 3, 1, 4),
        ("1f1b, recompute", 2, 2, 2),
        ("gpipe", 4, 1, 1),
        ("layers", 2, 1, 1),
    ],
)
def test_a_pipeline_has_the_losses_and_gradients_of_the_undivided_model(
    schedule: str, depth: int, data: int, replications: int
) -> None:
    losses, gradients = cases.train_undivided(depth, data, SAMPLES, STEPS)
    per_stage = iter(gradients)
    expected = {
        stage: [next(per_stage) for _ in module.parameters()]
        for stage, module in enumerate(cases.make_stages(depth))
    }
    for found_losses, by_stage, live in worlds.run(
        depth * data, cases.train, schedule, depth, data, SAMPLES, STEPS, replications
    ):
        assert found_losses == pytest.approx(losses, rel=1e-13)
        for stage, tensors in by_stage.items():
            for tensor, wanted in zip(tensors, expected[stage], strict=True):
                torch.testing.assert_close(tensor, wanted, rtol=1e-13, atol=1e-14)
        if schedule in ("gems", "layers"):
            assert live == 1


@pytest.mark.parametrize("schedule", ["gpipe", "gems"])
def test_batch_invariant_stages_give_a_sample_the_bits_of_the_undivided_model(schedule: str) -> None:
    torch.manual_seed(1)
    x = torch.randn(SAMPLES, 4, 9, 9)
    with torch.no_grad():
        expected = torch.nn.Sequential(*cases.make_convolutions(2))(x)
    seen = [each for rank in worlds.run(2, cases.results_of_convolutions, schedule, 2, x) for each in rank]
    assert sorted(int(n) for numbers, _ in seen for n in numbers) == list(range(SAMPLES))
    assert all(len(numbers) < SAMPLES for numbers, _ in seen)
    assert all(torch.equal(result, expected[numbers]) for numbers, result in seen)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("stages", "UsageError: the model has 3 stages and the mesh 2 ranks along 'pipe'"),
        ("shapes", "in the forward of micro-batch 0 in stage 1 with (4, 6) torch.float64 and (4, 6)"),
        ("batch", "UsageError: the inputs have no samples: leave out empty mini-batches on all ranks"),
        ("targets", "UsageError: the mini-batch has 8 samples in inputs and 6 in targets"),
        ("schedule", "UsageError: there is no schedule 'zigzag': give auto, layers, gems"),
        ("replications", "UsageError: replications is 0, must be at least 1"),
        ("meta", "is on the meta device, and this rank holds it: give a function that builds the stage"),
        ("memory", "NothingFitsError: no schedule of 2 stages fits 100 bytes on each rank"),
        ("example", 'UsageError: schedule="auto" measures the stages: give it an example mini-batch'),
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


def test_a_stage_that_a_function_builds_is_built_only_where_it_is_held() -> None:
    assert worlds.run(3, cases.built, 3) == [[0, 2], [1], [2, 0]]


def test_auto_takes_the_fastest_schedule_that_fits_and_all_ranks_agree() -> None:
    choices = worlds.run(2, cases.choose, 2)
    assert choices[0] == choices[1]
    fastest, leanest = choices[0]
    assert fastest in {"gpipe", "1f1b", "bidirectional"}
    assert leanest != "bidirectional"


def test_running_forward_again_does_not_count_twice_in_statistics() -> None:
    once = worlds.run(2, cases.statistics, 2, "1f1b")
    again = worlds.run(2, cases.statistics, 2, "1f1b, recompute")
    for stage, (kept, recomputed) in enumerate(zip(once, again, strict=True)):
        torch.testing.assert_close(recomputed[stage], kept[stage], rtol=0, atol=0)
