"""Divided tensors: data parallelism, conversion, memory, refusals, and ranks that disagree."""

from __future__ import annotations

import os
import re
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
    """Return the values of many cases, on two ranks that start only once."""
    c = spatial_cases
    cases = [c.bitwise, c.elements, c.collectives, c.dropout, c.checkpointed, c.autocast]
    return worlds.run(2, c.many, [*cases, c.from_parts, c.converted, spatial_refusals.refusals])


def test_pooling_nearest_slices_and_elements_have_the_same_bits(on_two: list[dict[str, Any]]) -> None:
    assert [results["bitwise"] for results in on_two] == [[], []]


def test_functions_of_elements_equal_those_of_whole_tensors(on_two: list[dict[str, Any]]) -> None:
    for results in on_two:
        wrong, calls = results["elements"]
        assert not wrong
        assert calls > 800


def test_a_step_sends_only_rows_and_small_sums(on_two: list[dict[str, Any]]) -> None:
    assert [results["collectives"] for results in on_two] == [[], []]


def test_ranks_drop_the_same_channels_and_different_elements(on_two: list[dict[str, Any]]) -> None:
    for results in on_two:
        whole_channels, other_elements, share = results["dropout"]
        assert whole_channels
        assert other_elements
        assert 0.45 < share < 0.55


def test_checkpointing_repeats_the_exchange(on_two: list[dict[str, Any]]) -> None:
    assert max(results["checkpointed"] for results in on_two) <= 1e-14


def test_ranks_without_rows_take_part_in_eager_and_compiled_networks() -> None:
    for results in worlds.run(3, spatial_empty.without_rows):
        assert {name: error for name, error in results.items() if not error <= 1e-12} == {}


def test_autocast_reaches_the_convolution_of_the_part(on_two: list[dict[str, Any]]) -> None:
    for results in on_two:
        dtype, error = results["autocast"]
        assert dtype == torch.bfloat16
        assert error < 0.03


def test_functions_outside_the_table_are_refused_with_advice(on_two: list[dict[str, Any]]) -> None:
    assert [results["refusals"] for results in on_two] == [[], []]


def test_a_part_that_a_rank_brings_gets_its_true_gradient(on_two: list[dict[str, Any]]) -> None:
    assert max(results["from_parts"] for results in on_two) <= 1e-15


def test_a_converted_model_runs_its_parts_in_mucudnn(on_two: list[dict[str, Any]]) -> None:
    for results in on_two:
        gradients, result, kernels = results["converted"]
        assert gradients < 1e-4
        assert result < 1e-5
        assert kernels >= 5  # three passes of two layers; the input needs no gradient


def test_the_same_numerics_give_the_same_bits_on_one_to_three_ranks() -> None:
    [expected] = worlds.run(1, spatial_cases.same_numerics)
    for world in (2, 3):
        for results in worlds.run(world, spatial_cases.same_numerics):
            assert torch.equal(results, expected)


@pytest.mark.parametrize("world", [2, *([3, 4] if "TEST_CASES" in os.environ else [])])
def test_networks_in_fp32_meet_the_criterion_for_results_and_gradients(world: int) -> None:
    for results in worlds.run(world, spatial_cases.in_fp32):
        for name, pairs in results.items():
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


def test_a_plan_divides_whole_tensors_again() -> None:
    for error, before, after in worlds.run(2, spatial_cases.divided_again):
        assert error <= 1e-12
        assert (before, after) == ([2, 1, 1], [2, 2, 2])


def test_ranks_with_copies_of_a_part_drop_the_same_elements() -> None:
    assert worlds.run(4, spatial_cases.dropped_after_gather) == [True] * 4


def test_layers_called_by_keyword_run_under_a_plan_and_a_report() -> None:
    for error, layers, text in worlds.run(2, spatial_cases.called_by_keyword):
        assert error < 1e-13
        assert layers == [("one", 2), ("two", 2), ("up", 2), ("last", 2)]
        assert "4 of 4 convolutions and linear layers ran divided, with 100% of the multiplications" in text


@pytest.mark.parametrize("world", [4, *([2] if "TEST_CASES" in os.environ else [])])
def test_a_planned_rank_holds_the_planned_bytes(world: int) -> None:
    results = worlds.run(world, spatial_cases.followed)
    for error, planned, planned_by_memory, allocated in results:
        assert planned == pytest.approx(allocated, rel=0.02)
        assert planned_by_memory == pytest.approx(allocated, rel=0.1)
        assert error <= 1e-4


def test_a_dtensor_has_the_same_parts() -> None:
    assert worlds.run(4, spatial_cases.as_dtensor) == [0.0] * 4


@pytest.mark.parametrize(
    ("kind", "world"),
    [
        ("shape", 2), ("values", 2), ("type", 2), ("gradient", 2), ("model", 2), ("model", 4), ("sum", 2),
        ("large sum", 2), ("order", 2), ("border", 2), ("mesh", 2),
    ],
)  # fmt: skip
def test_ranks_that_disagree_all_raise(kind: str, world: int) -> None:
    expected = "the ranks name different meshes" if kind == "mesh" else "the ranks do not agree"
    if kind == "model":
        expected = rf"{expected}.*rank {world - 1} of the group: window of axis 2"
    for text in worlds.run(world, spatial_refusals.divergence, kind):
        assert re.search(expected, text, re.DOTALL)


def test_a_rank_that_waits_too_long_raises() -> None:
    results, _ = worlds.run(2, spatial_refusals.absence)
    assert "did not take part within 1 s" in results


def test_ranks_that_do_the_same_share_a_text_in_the_error() -> None:
    text = watching.shown_by_rank({0: "sum", 1: "window", 3: "sum"})
    assert text == "ranks 0, 3 of the group: sum; rank 1 of the group: window"


def test_a_disagreement_that_all_ranks_caught_is_settled() -> None:
    assert worlds.run(2, spatial_refusals.settled) == ["", ""]


def test_a_rank_that_comes_late_raises_no_error() -> None:
    assert worlds.run(2, spatial_refusals.slow_rank) == [0.0, 0.0]


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
    [
        ("cosmoflow", 1e-12),
        ("unet3d_divided", 1e-12),
        ("image_vae", 1e-13),
        ("video_vae", 1e-13),
        ("long_video", 1e-13),
    ],
)
def test_an_example_network_equals_the_undivided_one_with_its_share_of_bytes(name: str, limit: float) -> None:
    if name == "cosmoflow":
        imported("h5py")
    if name == "long_video":
        pytest.importorskip("diffusers")
    for error, whole, part in worlds.run(2, spatial_cases.example, name):
        assert error <= limit
        assert part <= whole / 2 * 1.25
