"""A measured algorithm that cannot be prepared now gives way to the next best, and is not tried again."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest
from graph_numbers import EXPLICIT_GEMM, LEGACY_NUMBERS, UNTRANSFORMED
from library_calls import PLANNING, added_calls
from reference import PASSES
from shim_cases import ROOMY, case, check_results, check_same, run_under_shim, write_plan
from shim_journal import journal_in, set_times, without_knobs
from shim_modes import following, run_online
from shim_problems import GRAPH_PROBLEM, LEGACY_PROBLEM
from wrapped_library import build_wrapper

from mucudnn._native import Engine, host_library


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_wrapper(tmp_path_factory.mktemp("refusing")))


def refusing_environment(library: str, **refused: str) -> dict[str, str]:
    return {"HOST_ENGINE": host_library(), "MUCUDNN_LIBRARY": library, **refused}


def set_factors(folder: Path, factors: dict[str, float]) -> None:
    """Set the journal's times to factor times the square of the size. Other algorithms have factor 100."""
    set_times(folder, lambda size, algorithm: size**2 * factors.get(without_knobs(algorithm), 100.0))


@pytest.mark.parametrize("pass_", PASSES)
def test_an_engine_that_is_refused_when_a_plan_is_finalized_gives_way_to_the_next_best(
    pass_: str, library: str, tmp_path: Path
) -> None:
    quick, _, next_best, _ = UNTRANSFORMED[pass_]
    convolution = case(GRAPH_PROBLEM, pass_, "graph", engine=EXPLICIT_GEMM[pass_])
    run_online(tmp_path, convolution)
    set_factors(tmp_path, {quick: 1.0, next_best: 10.0})  # slower than `quick` at any size
    results = run_online(
        tmp_path, convolution, **refusing_environment(library, REFUSED_ENGINE=quick.removeprefix("eng"))
    )
    assert results.summary == "1 of 1 convolutions divided"
    assert f"  # not used: 7*1 {quick}: " in results.stderr
    assert re.findall("the fastest that fits: (.*? with 0 bytes)", results.stderr)[-1].startswith(
        f"7*1 {next_best} "
    )
    check_results([convolution], results, [[LEGACY_NUMBERS[pass_][next_best]]], tmp_path)


def test_what_was_refused_once_is_not_tried_again(library: str, tmp_path: Path) -> None:
    convolution = case(GRAPH_PROBLEM, "forward", "graph", engine=EXPLICIT_GEMM["forward"])
    run_online(tmp_path, convolution)
    set_factors(tmp_path, {"eng0": 1.0, "IMPLICIT_GEMM": 10.0})
    once, twice = (
        added_calls(tmp_path, library, *[convolution] * times, REFUSED_ENGINE="0", MUCUDNN_LOG="warning")
        for times in (1, 2)
    )
    additional = Counter({name: twice[name] - once[name] for name in PLANNING})
    # Each time the drop-in reads the engine and the configuration of the program's own plan.
    assert additional == Counter({"ENGINE": 2, "ENGINECFG": 1})


def test_what_needs_more_workspace_than_when_it_was_measured_gives_way_too(tmp_path: Path) -> None:
    convolution = case(
        GRAPH_PROBLEM, "forward", "graph", engine=LEGACY_NUMBERS["forward"]["WINOGRAD_NONFUSED"]
    )
    run_online(tmp_path, convolution)
    set_factors(tmp_path, {"eng2": 1.0, "IMPLICIT_GEMM": 10.0})
    text = journal_in(tmp_path).read_text()
    journal_in(tmp_path).write_text(
        re.sub(r"\b(measured eng2:[^:]+):\d+:|\b(eng2):\d+:", without_workspace, text)
    )
    results = run_online(tmp_path, convolution, MUCUDNN_WORKSPACE_LIMIT="1KiB")
    assert "  # not used: 7*1 eng2: it needs more workspace than when it was measured\n" in results.stderr
    assert results.summary == "1 of 1 convolutions divided"
    assert results.facts[0]["workspace"] == 0
    check_results([convolution], results, [[0]], tmp_path)


def without_workspace(row: re.Match[str]) -> str:
    return f"{row[1] or row[2]}:0:"


def test_an_algorithm_that_is_refused_gives_way_in_the_legacy_api(library: str, tmp_path: Path) -> None:
    run_online(tmp_path, case(LEGACY_PROBLEM, "forward"))
    set_factors(tmp_path, {"IMPLICIT_GEMM": 1.0, "GEMM": 10.0})
    number = LEGACY_NUMBERS["forward"]["WINOGRAD_NONFUSED"]
    convolution = case(LEGACY_PROBLEM, "forward", "fixed", algorithm=number, workspace=ROOMY)
    results = run_online(tmp_path, convolution, **refusing_environment(library, REFUSED_ALGORITHM="0"))
    assert "not used for " in results.stderr
    assert results.summary == "1 of 1 convolutions divided"
    check_results([convolution], results, [[LEGACY_NUMBERS["forward"]["GEMM"]]], tmp_path)


def test_where_a_plan_file_has_nothing_else_the_programs_own_plan_is_run_and_it_is_said_once(
    library: str, engine: Engine, tmp_path: Path
) -> None:
    plan = write_plan(
        engine, tmp_path / "small.plan", {(GRAPH_PROBLEM, "forward"): [[(3, "eng0"), (4, "eng0")]]}
    )
    cases = [case(GRAPH_PROBLEM, "forward", "graph", engine=EXPLICIT_GEMM["forward"])] * 2
    results = run_under_shim(
        cases, tmp_path, **following(plan), **refusing_environment(library, REFUSED_ENGINE="0")
    )
    assert results.summary == "0 of 2 convolutions divided, 2 passed through (nothing within the workspace)"
    assert results.stderr.count("not used for ") == 1
    check_same(cases, results, tmp_path)
