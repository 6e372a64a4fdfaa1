"""Divided tensors under data parallelism, converted, in memory, refused, and on ranks that disagree."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import needs_torch  # noqa: F401
import pytest
import spatial_cases
import spatial_empty
import spatial_refusals
import torch
import worlds
from programs import imported

from mucudnn.torch.parallel.spatial.exchange import watching

sys.path.append(str(Path(__file__).parents[2]))  # examples


@pytest.mark.parametrize(
    ("kind", "statistics", "whole"),
    [
        ("none", "spatial", True), ("ddp", "spatial", False), ("ddp", "all", True), ("fsdp", "spatial", True),
        *([("ddp", "spatial", True), ("fsdp", "spatial", False)] if "TEST_CASES" in os.environ else []),
    ],
)  # fmt: skip
def test_data_parallelism_gets_the_gradients_of_the_undivided_model(
    kind: str, statistics: str, whole: bool
) -> None:
    for error in worlds.run(4, spatial_cases.data_parallel, kind, statistics, whole):
        assert error <= 1e-12


@pytest.fixture(scope="module")
def on_two() -> list[dict[str, Any]]:
    """Return the values of many cases on two ranks that are started once."""
    c = spatial_cases
    cases = [c.bitwise, c.elements, c.collectives, c.dropout, c.checkpointed, c.compiled, c.autocast]
    cases += [c.from_parts, c.losses, c.memory]
    return worlds.run(2, c.many, [*cases, c.converted, spatial_refusals.refusals])


def test_pooling_nearest_slices_and_elements_have_the_same_bits(on_two: list[dict[str, Any]]) -> None:
    assert [found["bitwise"] for found in on_two] == [[], []]


def test_functions_of_elements_equal_those_of_whole_tensors(on_two: list[dict[str, Any]]) -> None:
    for found in on_two:
        wrong, calls = found["elements"]
        assert not wrong
        assert calls > 800


def test_a_step_sends_rows_and_small_sums_alone(on_two: list[dict[str, Any]]) -> None:
    assert [found["collectives"] for found in on_two] == [[], []]


def test_dropout_of_channels_is_shared_and_that_of_elements_is_not(on_two: list[dict[str, Any]]) -> None:
    for found in on_two:
        whole_channels, other_elements, share = found["dropout"]
        assert whole_channels
        assert other_elements
        assert 0.45 < share < 0.55


def test_checkpointing_repeats_the_exchange(on_two: list[dict[str, Any]]) -> None:
    assert max(found["checkpointed"] for found in on_two) <= 1e-14


def test_a_model_compiles_into_one_graph(on_two: list[dict[str, Any]]) -> None:
    assert max(found["compiled"] for found in on_two) <= 1e-12


def test_ranks_without_rows_take_part_in_eager_and_compiled_networks() -> None:
    for found in worlds.run(3, spatial_empty.without_rows):
        assert {name: error for name, error in found.items() if not error <= 1e-12} == {}


def test_inductor_keeps_the_order_of_exchanges_of_a_rank_without_rows() -> None:
    assert max(worlds.run(3, spatial_empty.compiled_by_inductor)) <= 1e-12


def test_autocast_reaches_the_convolution_of_the_part(on_two: list[dict[str, Any]]) -> None:
    for found in on_two:
        dtype, error = found["autocast"]
        assert dtype == torch.bfloat16
        assert error < 0.03


def test_what_is_not_in_the_table_is_refused_with_advice(on_two: list[dict[str, Any]]) -> None:
    assert [found["refusals"] for found in on_two] == [[], []]


def test_a_part_that_a_rank_brings_gets_its_true_gradient(on_two: list[dict[str, Any]]) -> None:
    assert max(found["from_parts"] for found in on_two) <= 1e-15


def test_losses_of_divided_tensors_equal_those_of_whole_ones(on_two: list[dict[str, Any]]) -> None:
    assert max(found["losses"] for found in on_two) <= 1e-14


def test_a_rank_saves_its_share_and_the_received_rows_alone(on_two: list[dict[str, Any]]) -> None:
    for found in on_two:
        whole, part = found["memory"]
        assert part <= whole / 2 * (1 + 0.1 + 4 / 16)  # 16 rows a rank, and up to 4 received ones


def test_a_converted_model_runs_its_parts_in_mucudnn(on_two: list[dict[str, Any]]) -> None:
    for found in on_two:
        gradients, result, kernels = found["converted"]
        assert gradients < 1e-4
        assert result < 1e-5
        assert kernels >= 5  # three passes of two layers; the input needs no gradient


def test_the_same_numerics_give_the_same_bits_on_one_to_three_ranks() -> None:
    [expected] = worlds.run(1, spatial_cases.same_numerics)
    for world in (2, 3):
        for found in worlds.run(world, spatial_cases.same_numerics):
            assert torch.equal(found, expected)


@pytest.mark.parametrize("world", [2, *([3, 4] if "TEST_CASES" in os.environ else [])])
def test_networks_in_fp32_meet_the_criterion_for_results_and_gradients(world: int) -> None:
    for found in worlds.run(world, spatial_cases.in_fp32):
        for name, pairs in found.items():
            for error, bound in pairs:
                assert error <= bound, name


def test_a_layer_has_at_most_two_local_problems_and_a_second_run_measures_nothing(tmp_path: Path) -> None:
    cache = str(tmp_path / "cache.sqlite")
    ranks = worlds.run(4, spatial_cases.local_problems, cache)
    layers = zip(*(shapes for shapes, _ in ranks), strict=True)
    different = [{shape for shapes in layer for shape in shapes} for layer in layers]
    assert [len(shapes) for shapes in different] == [2, 2, 2, 2]
    again = worlds.run(4, spatial_cases.local_problems, cache)
    assert max(rows for _, rows in ranks) > 0
    assert {rows for _, rows in again} == {max(rows for _, rows in ranks)}


@pytest.mark.parametrize("names", [("depth",), ("height",), ("depth", "height")])
def test_layers_gathered_over_some_dimensions_get_the_undivided_gradients(names: tuple[str, ...]) -> None:
    for error in worlds.run(4, spatial_cases.partly_gathered, names):
        assert error <= 1e-12


def test_ranks_with_copies_of_a_part_drop_the_same_elements() -> None:
    assert worlds.run(4, spatial_cases.dropped_after_gather) == [True] * 4


@pytest.mark.parametrize("world", [4, *([2] if "TEST_CASES" in os.environ else [])])
def test_a_planned_rank_holds_the_planned_bytes(world: int) -> None:
    found = worlds.run(world, spatial_cases.followed)
    for error, planned, planned_by_memory, allocated in found:
        assert planned == pytest.approx(allocated, rel=0.02)
        assert planned_by_memory == pytest.approx(allocated, rel=0.1)
        assert error <= 1e-4


def test_a_dtensor_has_the_same_parts() -> None:
    assert worlds.run(4, spatial_cases.as_dtensor) == [0.0] * 4


@pytest.mark.parametrize("kind", ["shape", "values", "type", "gradient", "model", "order", "mesh"])
def test_ranks_that_disagree_all_raise(kind: str) -> None:
    expected = "the ranks name different meshes" if kind == "mesh" else "the ranks do not agree"
    for text in worlds.run(2, spatial_refusals.divergence, kind):
        assert expected in text


def test_a_rank_that_waits_in_vain_raises() -> None:
    found, _ = worlds.run(2, spatial_refusals.absence)
    assert "did not take part within 1 s" in found


def test_a_rank_that_disagrees_is_an_error_in_ranks_that_exchange_nothing_with_it() -> None:
    for text in worlds.run(4, spatial_refusals.far_divergence):
        assert "the ranks do not agree" in text
        assert "rank 3 of the group: window of axis 2" in text


def test_ranks_that_do_the_same_stand_together_in_the_error() -> None:
    text = watching.shown_by_rank({0: "sum", 1: "window", 3: "sum"})
    assert text == "ranks 0, 3 of the group: sum; rank 1 of the group: window"


@pytest.mark.parametrize("columns", [4, 1 << 15])
def test_ranks_that_add_up_different_tensors_all_raise(columns: int) -> None:
    for text in worlds.run(2, spatial_refusals.different_sums, columns):
        assert "the ranks do not agree" in text


def test_a_rank_that_divides_while_another_runs_a_layer_is_an_error_in_both() -> None:
    for text in worlds.run(2, spatial_refusals.border_against_layer):
        assert "the ranks do not agree" in text


def test_a_disagreement_that_all_ranks_caught_is_settled() -> None:
    assert worlds.run(2, spatial_refusals.settled) == ["", ""]


def test_a_rank_that_comes_late_is_no_error() -> None:
    assert worlds.run(2, spatial_refusals.slow_rank) == [0.0, 0.0]


def test_a_rank_that_ends_is_an_error_in_the_others() -> None:
    found = worlds.outcomes_of(2, spatial_refusals.ended)
    assert "has ended" in found[0].value
    assert "ended with 3" in (found[1].error or "")


def test_each_rank_reads_its_rows_of_an_hdf5_file(tmp_path: Path) -> None:
    h5py = imported("h5py")
    path = tmp_path / "volumes.h5"
    with h5py.File(path, "w") as file:
        file["x"] = torch.randn(8, 2, 7, 4, 4).numpy()
        file["y"] = torch.randn(8, 4).numpy()
    rows = [4, 3, 4, 3]
    assert worlds.run(4, spatial_cases.hyperslabs, str(path)) == [(0.0, 0.0, own) for own in rows]


@pytest.mark.parametrize(
    ("name", "limit"),
    [("cosmoflow", 1e-12), ("unet3d_divided", 1e-12), ("image_vae", 1e-13), ("video_vae", 1e-13)],
)
def test_an_example_network_equals_the_undivided_one_with_its_share_of_bytes(name: str, limit: float) -> None:
    if name == "cosmoflow":
        imported("h5py")
    for error, whole, part in worlds.run(2, spatial_cases.example, name):
        assert error <= limit
        assert part <= whole / 2 * 1.25
