"""A pipeline's loss and gradients equal those of the undivided model, or the loss is refused."""

from __future__ import annotations

import needs_torch  # noqa: F401
import pipeline_loss_cases as cases
import pytest
import worlds


@pytest.mark.parametrize(
    ("schedule", "depth", "data", "replications"),
    [("gems", 3, 1, 2), ("1f1b, recompute", 2, 2, 2), ("bidirectional", 2, 1, 4)],
)
def test_means_over_samples_and_sums_with_weights_are_those_of_the_undivided_model(
    schedule: str, depth: int, data: int, replications: int
) -> None:
    for results in worlds.run(depth * data, cases.compare, schedule, depth, data, replications):
        assert results.keys() == cases.LOSSES.keys()
        for name, difference in results.items():
            assert difference.loss <= 1e-12, name
            assert difference.gradients <= 1e-12, name


def test_a_mean_of_no_targets_is_not_a_number_and_has_the_gradients_of_stock() -> None:
    for difference in worlds.run(2, cases.nothing_counts):
        assert (difference.loss, difference.gradients) == (0.0, 0.0)


def test_a_loss_that_is_neither_a_mean_over_samples_nor_a_sum_with_its_weight_is_refused() -> None:
    (results,) = worlds.run(1, cases.refusals)
    assert results["float"] == "the loss returned a float: return a scalar tensor, or (sum, weight)"
    assert results["three"] == "the loss returned a tuple: return a scalar tensor, or (sum, weight)"
    assert results["vector"] == "the loss returned a sum of shape (4,): give one number"
    assert results["weights"] == "the loss returned a weight of shape (4,): give one number"
    assert results["swapped"] == "the loss returned a int as the sum: give a tensor"
    assert results["learned"].startswith("the loss returned a weight that depends on parameters")
    remedy = "let it return (sum, weight), or the mean over the samples"
    for name in ("ignored", "ignored in a part", "ignored class", "weighted"):
        assert results[name] == f"the loss weights or ignores targets: {remedy}"
    assert results["sum"] == results["sum in a function"] == f"the loss is a sum: {remedy}"
    assert results["owning"].startswith("the loss has parameters with gradients")
