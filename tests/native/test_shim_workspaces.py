"""No workspace is overrun, whichever answer gave its size. Calls above the limit are one warning."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from graph_numbers import EXPLICIT_GEMM, LEGACY_NUMBERS
from reference import PASSES
from shim_cases import Ran, case, check_results, problem_of, run_alone, run_cases, run_under_shim, write_plan
from shim_modes import following, online_in
from shim_problems import GRAPH_PROBLEM, LEGACY_PROBLEM
from wrapped_library import build_wrapper

from mucudnn._native import Engine, host_library

IMPLICIT_GEMM = {pass_: next(iter(numbers.values())) for pass_, numbers in LEGACY_NUMBERS.items()}
each_pass = pytest.mark.parametrize("pass_", PASSES)
each_asks = pytest.mark.parametrize("asks", [False, True], ids=["never asks", "asks, and ignores it"])


def at(samples: int) -> str:
    """Return the problem with another mini-batch."""
    return str(problem_of({"problem": GRAPH_PROBLEM}).replace(mini_batch=samples))


def graph(pass_: str, engine: int, problem: str = GRAPH_PROBLEM, **more: Any) -> dict[str, Any]:
    return case(problem, pass_, "graph", engine=engine, **more)


def dividing_plan(engine: Engine, folder: Path, pass_: str, number: int) -> Path:
    """Write a plan of two micro-batches by an engine of this number."""
    parts = [(4, f"eng{number}"), (3, f"eng{number}")]
    return write_plan(engine, folder / "a.plan", {(GRAPH_PROBLEM, pass_): [parts]})


def check(convolution: dict[str, Any], results: Ran, folder: Path) -> dict[str, Any]:
    """Check the result against fp64. The program itself checks that nothing behind its workspace changed."""
    numbers = list(LEGACY_NUMBERS[convolution["pass_"]].values())
    plain = {name: convolution[name] for name in ("problem", "pass_", "habit")}
    check_results([plain], results, [numbers], folder)
    return results.facts[0]


# --- execution plans made of what was stored, like XLA's ---


@each_asks
@each_pass
def test_a_stored_engine_without_workspace_uses_none(
    pass_: str, asks: bool, engine: Engine, tmp_path: Path
) -> None:
    convolution = graph(pass_, IMPLICIT_GEMM[pass_], stored=True, brings=0, asks=asks)
    plan = dividing_plan(engine, tmp_path, pass_, EXPLICIT_GEMM[pass_])
    results = run_under_shim([convolution], tmp_path, **following(plan, "64MiB"))
    assert check(convolution, results, tmp_path)["workspace"] == 0


@each_asks
@each_pass
def test_a_stored_engine_is_divided_within_its_own_workspace(
    pass_: str, asks: bool, engine: Engine, tmp_path: Path
) -> None:
    number = EXPLICIT_GEMM[pass_]
    [own] = run_alone([graph(pass_, number)], tmp_path).facts
    convolution = graph(pass_, number, stored=True, brings=own["workspace"], asks=asks)
    plan = dividing_plan(engine, tmp_path, pass_, number)
    results = run_under_shim([convolution], tmp_path, **following(plan, "64MiB"))
    check(convolution, results, tmp_path)
    assert results.summary == "1 of 1 convolutions divided"


@each_pass
def test_a_stored_engine_uses_what_was_read_of_the_listed_engines_plan(
    pass_: str, engine: Engine, tmp_path: Path
) -> None:
    convolution = graph(pass_, IMPLICIT_GEMM[pass_], stored=True, brings="listed", asks=True)
    plan = dividing_plan(engine, tmp_path, pass_, EXPLICIT_GEMM[pass_])
    results = run_under_shim([convolution], tmp_path, **following(plan, "64MiB"))
    assert check(convolution, results, tmp_path)["workspace"] > 0
    assert results.summary == "1 of 1 convolutions divided"


# --- workspaces that were read for other plans ---


@each_asks
@each_pass
def test_the_plan_of_a_smaller_mini_batch_runs_in_what_was_read_for_a_larger_one(
    pass_: str, asks: bool, engine: Engine, tmp_path: Path
) -> None:
    number, small, frugal = EXPLICIT_GEMM[pass_], at(5), f"eng{IMPLICIT_GEMM[pass_]}"
    convolution = graph(pass_, number, small, brings=GRAPH_PROBLEM, asks=asks)
    kernels = {
        (GRAPH_PROBLEM, pass_): [[(4, frugal), (3, frugal)]],
        (small, pass_): [[(1, f"eng{number}")] * 5, [(5, frugal)]],
    }
    plan = write_plan(engine, tmp_path / "both.plan", kernels)
    results = run_under_shim([convolution], tmp_path, **following(plan, "64KiB"))
    check(convolution, results, tmp_path)


@each_pass
def test_a_legacy_call_of_a_smaller_mini_batch_runs_in_what_was_read_for_a_larger_one(
    pass_: str, engine: Engine, tmp_path: Path
) -> None:
    large, name = LEGACY_PROBLEM.replace("mb7", "mb16"), {"forward": "GEMM"}.get(pass_, "ALGO_0")
    plan = write_plan(engine, tmp_path / "a.plan", {(large, pass_): [[(2, name)] * 8]})
    quiet = {**following(plan, "80KiB"), "MUCUDNN_LOG": "warning"}
    number = EXPLICIT_GEMM[pass_]
    asking = case(large, pass_, "size", algorithm=number)
    [told] = run_under_shim([asking], tmp_path, **quiet).facts
    smaller = case(
        large.replace("mb16", "mb11"), pass_, "fixed", algorithm=number, workspace=told["workspace"]
    )
    results = run_under_shim([asking, smaller], tmp_path, **quiet)
    check_results([asking, smaller], results, [[number]] * 2, tmp_path)
    [warning] = results.warnings
    assert "the program brings the workspace that it read for another convolution" in warning


@each_pass
def test_a_plan_that_is_restored_from_its_text_runs_in_what_was_read_of_the_first(
    pass_: str, engine: Engine, tmp_path: Path
) -> None:
    library = {"MUCUDNN_LIBRARY": str(build_wrapper(tmp_path)), "HOST_ENGINE": host_library()}
    convolution = graph(pass_, EXPLICIT_GEMM[pass_], restored=True)
    plan = dividing_plan(engine, tmp_path, pass_, IMPLICIT_GEMM[pass_])
    results = run_under_shim([convolution], tmp_path, **following(plan, "64KiB"), **library)
    alone = run_cases([convolution], tmp_path, library["MUCUDNN_LIBRARY"], **library)
    told = check(convolution, results, tmp_path)["workspace"]
    assert told < alone.facts[0]["workspace"]
    frugal = graph(pass_, IMPLICIT_GEMM[pass_], restored=True)  # the division needs no less
    passed = run_under_shim([frugal], tmp_path, **following(plan), **library)
    assert passed.summary == "0 of 1 convolutions divided, 1 passed through (a plan made from JSON)"


@each_pass
def test_a_configuration_is_the_one_that_was_written_last(pass_: str, engine: Engine, tmp_path: Path) -> None:
    number, small = EXPLICIT_GEMM[pass_], at(2)
    name = f"eng{number}"
    kernels = {(GRAPH_PROBLEM, pass_): [[(4, name), (3, name)]], (small, pass_): [[(1, name)] * 2]}
    plan = write_plan(engine, tmp_path / "both.plan", kernels)
    convolution = graph(pass_, number, into=small)
    results = run_under_shim([convolution], tmp_path, **following(plan))
    check(convolution, results, tmp_path)


# --- calls that pass through above the limit ---


SCALED = case(GRAPH_PROBLEM + "+bias+relu", "forward", "graph", engine=2, odd={"alpha": 2.0})
MANY = case(
    "f32:nchw:default:mb1048577_ic1ih1_oc1oh1_kh3_ph1", "forward", "fixed", algorithm=2, workspace=1 << 26
)


@pytest.mark.parametrize(
    ("convolution", "reason"),
    [(SCALED, "a fused convolution with alpha or beta"), (MANY, "a mini-batch above 1048576")],
    ids=["graph", "legacy"],
)
def test_calls_that_pass_through_above_the_limit_are_one_warning_that_says_why(
    convolution: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    cases = [{**convolution, "repeat": 2}]
    results = run_under_shim(cases, tmp_path, **online_in(tmp_path, "1KiB"), MUCUDNN_LOG="warning")
    [warning] = results.warnings
    assert f"passes through ({reason}) and takes" in warning
    assert warning.endswith("bytes of workspace, above the limit of 1024")
    within = run_under_shim(cases, tmp_path, **online_in(tmp_path, "1GiB"), MUCUDNN_LOG="warning")
    assert within.stderr == ""
