"""A pipeline, whose stages may share weights, trains as the undivided model does."""

from __future__ import annotations

import needs_torch  # noqa: F401
import pipeline_tie_cases as cases
import pytest
import worlds

from mucudnn.solver.devices.schedules import SCHEDULES


@pytest.mark.parametrize(
    ("schedule", "depth", "data", "replications"),
    [("gems", 4, 1, 2), ("gems", 2, 2, 1), ("bidirectional", 3, 1, 4), ("1f1b, recompute", 2, 2, 2)],
)
def test_a_pipeline_trains_as_the_undivided_model_and_weights_that_stages_share_stay_equal(
    schedule: str, depth: int, data: int, replications: int
) -> None:
    check(worlds.run(depth * data, cases.train_all, schedule, depth, data, replications))


@pytest.mark.parametrize("depth", [2, 3])
def test_a_weight_of_the_first_and_the_last_stage_trains_as_in_the_undivided_model_in_every_schedule(
    depth: int,
) -> None:
    check(worlds.run(depth, cases.train_in_schedules, list(SCHEDULES), depth))


def check(ranks: list[dict[str, tuple[float, list[list[float]]]]]) -> None:
    for name in ranks[0]:
        copies = [weight for results in ranks for weight in results[name][1]]
        assert len(copies) >= 2 or name == "not shared"
        assert all(weight == copies[0] for weight in copies), name
        for results in ranks:
            assert results[name][0] <= 1e-12, name


def test_copies_of_a_shared_weight_begin_with_the_values_of_its_first_stage() -> None:
    copies = [weight for results in worlds.run(3, cases.start, 3) for weight in results]
    assert {number for weight in copies for number in weight} == {1.0}


def test_weights_that_stages_share_on_the_meta_device_alone_are_refused_on_every_rank() -> None:
    for text in worlds.run(3, cases.on_meta, False):
        assert "share the parameter first.weight (first.weight) on the meta device" in text
        assert "let split cut the model, or give each stage a parameter of its own" in text


def test_one_module_on_the_meta_device_may_stand_for_the_stages_of_all_other_ranks() -> None:
    assert worlds.run(3, cases.on_meta, True) == ["5 parameters", "3 parameters", "5 parameters"]


@pytest.mark.parametrize(("schedule", "depth"), [("gems", 3), ("1f1b", 2)])
def test_the_norm_of_all_gradients_is_that_of_the_undivided_model_on_every_rank(
    schedule: str, depth: int
) -> None:
    ranks = worlds.run(depth, cases.norms, depth, schedule)
    assert all(norms == ranks[0] for norms in ranks)
    for order, (norm, expected) in ranks[0].items():
        assert norm == pytest.approx(expected, rel=1e-12, abs=1e-15), order
    assert any("gradients is nan, so they are not clipped" in order for order in ranks[0])


@pytest.mark.parametrize(("schedule", "depth", "data"), [("gems", 3, 1), ("1f1b", 2, 2)])
def test_a_layer_that_some_replicas_use_has_the_whole_gradient_and_an_unused_layer_has_none(
    schedule: str, depth: int, data: int
) -> None:
    counts: dict[int, set[int]] = {}
    for results in worlds.run(depth * data, cases.partial_use, depth, schedule, data):
        for stage, (has_none, distance, count, is_finite) in results.items():
            assert has_none
            assert distance <= 1e-12
            assert is_finite
            counts.setdefault(stage, set()).add(count)
    assert all(len(values) == 1 for values in counts.values())  # all copies have the same count


@pytest.mark.parametrize("schedule", ["gems", "1f1b"])
def test_a_sparse_gradient_is_added_to_the_dense_one_of_another_stage(schedule: str) -> None:
    assert max(worlds.run(2, cases.sparse, schedule)) <= 1e-12
