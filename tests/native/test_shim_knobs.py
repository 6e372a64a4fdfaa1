"""The drop-in handles engines with knobs in plans, in the choices of programs, and in the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import shim_cases
from graph_numbers import EXPLICIT_GEMM, LEGACY_NUMBERS
from reference import PASSES
from shim_cases import case, check_results, run_alone, run_under_shim
from shim_modes import following
from shim_problems import GRAPH_PROBLEM

from mucudnn._native import Engine
from mucudnn.cli import main
from mucudnn.costs.cache import Cache
from mucudnn.costs.schema import MEASUREMENT

SIZES = (3, 3, 1)


def explicit_gemm_with_tiles(pass_: str, tile_size: int) -> str:
    return f"eng{EXPLICIT_GEMM[pass_]}_k2={tile_size}"


def graph(pass_: str, tile_size: int | None = None, **more: Any) -> dict[str, Any]:
    """Return a case whose own execution plan is explicit GEMM, with this tile size or the default."""
    knobs = {} if tile_size is None else {"2": tile_size}
    return case(GRAPH_PROBLEM, pass_, "graph", engine=EXPLICIT_GEMM[pass_], knobs=knobs, **more)


def plan_of(engine: Engine, folder: Path, names: dict[str, list[str]]) -> Path:
    kernels = {
        (GRAPH_PROBLEM, pass_): [list(zip(SIZES, algorithms, strict=True))]
        for pass_, algorithms in names.items()
    }
    return shim_cases.write_plan(engine, folder / "knobs.plan", kernels)


def test_a_plan_may_set_knobs_as_no_heuristic_does_and_differently_in_each_part(
    engine: Engine, tmp_path: Path
) -> None:
    names = {
        pass_: [
            explicit_gemm_with_tiles(pass_, 3),
            explicit_gemm_with_tiles(pass_, 1),
            f"eng{EXPLICIT_GEMM[pass_]}",
        ]
        for pass_ in PASSES
    }
    cases = [graph(pass_) for pass_ in PASSES]
    results = run_under_shim(cases, tmp_path, **following(plan_of(engine, tmp_path, names)))
    assert results.summary == "3 of 3 convolutions divided"
    check_results(cases, results, [[EXPLICIT_GEMM[pass_]] for pass_ in PASSES], tmp_path)


@pytest.mark.parametrize("pass_", PASSES)
def test_a_program_is_told_less_workspace_where_the_plan_has_smaller_tiles(
    pass_: str, engine: Engine, tmp_path: Path
) -> None:
    workspaces = []
    (own,) = run_alone([graph(pass_)], tmp_path).facts
    limit = {"MUCUDNN_WORKSPACE_LIMIT": str(own["workspace"] - 1)}
    for tile_size in (0, 2, 4):
        plan = plan_of(engine, tmp_path, {pass_: [explicit_gemm_with_tiles(pass_, tile_size)] * 3})
        results = run_under_shim([graph(pass_)], tmp_path, **following(plan), **limit)
        assert results.summary == "1 of 1 convolutions divided"
        workspaces.append(results.facts[0]["workspace"])
    assert own["workspace"] > workspaces[0] > workspaces[1] > workspaces[2] > 0


@pytest.mark.parametrize("pass_", PASSES)
def test_a_program_that_chose_the_knobs_of_the_plan_itself_makes_its_own_call(
    pass_: str, engine: Engine, tmp_path: Path
) -> None:
    name = explicit_gemm_with_tiles(pass_, 3)
    plan = shim_cases.write_plan(engine, tmp_path / "own.plan", {(GRAPH_PROBLEM, pass_): [[(7, name)]]})
    cases = [graph(pass_, 3), graph(pass_, 2)]
    results = run_under_shim(cases, tmp_path, **following(plan))
    own = "1 passed through (the caller's own choice is the best)"
    assert results.summary == f"0 of 2 convolutions divided, 1 by a faster algorithm, {own}"
    assert (results.outputs[0] == results.outputs[1]).all()
    assert (results.outputs[0] == run_alone(cases, tmp_path).outputs[0]).all()


@pytest.mark.parametrize("pass_", PASSES)
def test_a_knob_that_a_program_leaves_to_the_engine_is_no_part_of_its_name(
    pass_: str, engine: Engine, tmp_path: Path
) -> None:
    name = f"eng{EXPLICIT_GEMM[pass_]}"
    plan = shim_cases.write_plan(engine, tmp_path / "own.plan", {(GRAPH_PROBLEM, pass_): [[(7, name)]]})
    results = run_under_shim([graph(pass_, -1), graph(pass_)], tmp_path, **following(plan))
    own = "2 passed through (the caller's own choice is the best)"
    assert results.summary == f"0 of 2 convolutions divided, {own}"


@pytest.mark.parametrize("name", ["eng{}_k2=5", "eng{}_k2=-2", "eng{}_k3=1"])
def test_a_plan_with_a_value_that_no_knob_has_is_not_followed(
    name: str, engine: Engine, tmp_path: Path
) -> None:
    names = {pass_: [name.format(EXPLICIT_GEMM[pass_])] * 3 for pass_ in PASSES}
    cases = [graph(pass_) for pass_ in PASSES]
    plan = plan_of(engine, tmp_path, names)
    results = run_under_shim(cases, tmp_path, **following(plan))
    assert results.summary == "0 of 3 convolutions divided, 3 passed through (nothing within the workspace)"
    assert f"not used for {GRAPH_PROBLEM}" in results.stderr
    alone = run_alone(cases, tmp_path)
    assert all(
        (actual == expected).all() for actual, expected in zip(results.outputs, alone.outputs, strict=True)
    )


def test_what_is_measured_online_with_knobs_goes_into_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = str(tmp_path / "cache.sqlite")
    cases = [graph(pass_) for pass_ in PASSES]
    online = {"MUCUDNN_MODE": "online", "MUCUDNN_MEASURING": "thorough", "MUCUDNN_CACHE": cache}
    results = run_under_shim(cases, tmp_path, **online)
    check_results(cases, results, [list(LEGACY_NUMBERS[pass_].values()) for pass_ in PASSES], tmp_path)
    monkeypatch.setenv("MUCUDNN_CACHE", cache)
    assert main(["cache", "list"]) == 0
    with Cache.read_only(Path(cache)) as rows:
        kept = {(row["pass"], row["algorithm"]) for row in rows.select(MEASUREMENT)}
    assert {(pass_, explicit_gemm_with_tiles(pass_, size)) for pass_ in PASSES for size in (0, 4)} < kept
