"""A pipeline's loss and gradients equal those of the undivided model, whatever the targets' weights are."""

from __future__ import annotations

import needs_torch  # noqa: F401
import pipeline_loss_cases as cases
import pytest
import worlds


@pytest.mark.parametrize(
    ("schedule", "depth", "data", "replications"),
    [("gems", 3, 1, 2), ("1f1b, recompute", 2, 2, 2), ("bidirectional", 2, 1, 4)],
)
def test_losses_of_torch_and_sums_with_weights_are_those_of_the_undivided_model(
    schedule: str, depth: int, data: int, replications: int
) -> None:
    for results in worlds.run(depth * data, cases.compare, schedule, depth, data, replications):
        assert results.keys() == cases.LOSSES.keys()
        for name, difference in results.items():
            assert difference.loss <= 1e-12, name
            assert difference.gradients <= 1e-12, name
            assert not difference.warnings, name


def test_a_mean_of_no_targets_is_not_a_number_and_has_the_gradients_of_stock() -> None:
    for results in worlds.run(2, cases.nothing_counts):
        for difference in results.values():
            assert (difference.loss, difference.gradients, difference.warnings) == (0.0, 0.0, [])


def test_a_loss_that_weights_targets_unseen_is_warned_about() -> None:
    first, last = worlds.run(2, cases.unseen)
    for name in ("a part", "changed"):
        assert "a part of the loss weights or ignores targets" in last[name][0]
        assert "let the loss return (sum, weight)" in last[name][0]
    for results in (first, last):
        assert results["a part that ignores nothing"] == results["masked"] == []


def test_a_loss_that_is_neither_a_scalar_nor_a_sum_with_its_weight_is_refused() -> None:
    (results,) = worlds.run(1, cases.refusals)
    assert results["float"] == "the loss returned a float: return a scalar tensor, or (sum, weight)"
    assert results["three"] == "the loss returned a tuple: return a scalar tensor, or (sum, weight)"
    assert results["vector"] == "the loss returned a sum of shape (4,): give one number"
    assert results["weights"] == "the loss returned a weight of shape (4,): give one number"
    assert results["swapped"] == "the loss returned a int as the sum: give a tensor"
    assert results["learned"].startswith("the loss returned a weight that depends on parameters")
    assert results["sometimes"].startswith("the loss returned a weight for 1 of the 2 micro-batches")
    assert results["owning"].startswith("the loss has parameters with gradients")
