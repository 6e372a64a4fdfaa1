"""With a warm journal the drop-in makes no calls to the library but those that its decisions need."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import shim_cases
from graph_numbers import LEGACY_NUMBERS, UNTRANSFORMED
from library_calls import PLANNING, added_calls
from reference import PASSES
from shim_cases import case, check_results
from shim_journal import journal_in, rows_in, set_times, without_knobs
from shim_modes import measurements, run_online
from shim_problems import GRAPH_PROBLEM, LEGACY_PROBLEM
from wrapped_library import build_wrapper, calls_in

from mucudnn._native import Engine, host_library, parse_journal

PROBLEMS = {"graph": GRAPH_PROBLEM, "legacy": LEGACY_PROBLEM}
HABITS = {"graph": "graph", "legacy": "get"}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(build_wrapper(tmp_path_factory.mktemp("counting")))


def small_is_fast(*algorithms: str) -> Callable[[int, str], float]:
    """Return times by which these algorithms in micro-batches of one sample are fastest."""
    return lambda size, algorithm: size**2 * (1.0 if algorithm in algorithms else 100.0)


@pytest.mark.parametrize("pass_", PASSES)
def test_a_plan_of_the_graph_api_makes_the_plans_that_it_runs_by_and_no_others(
    pass_: str, library: str, tmp_path: Path
) -> None:
    convolution = case(GRAPH_PROBLEM, pass_, "graph", engine=LEGACY_NUMBERS[pass_][UNTRANSFORMED[pass_][3]])
    run_online(tmp_path, convolution)
    without_workspace = UNTRANSFORMED[pass_][0]  # one division suffices for every workspace
    set_times(tmp_path, lambda size, name: 100.0 if size == 7 or name != without_workspace else 1.0)
    made = added_calls(tmp_path, library, convolution)  # parts of 4, 2 and 1, by one engine
    # The slices of a filter gradient after the first have beta 1, and so plans of their own.
    plans = 6 if pass_ == "backward_filter" else 3
    # The drop-in also reads the engine and the configuration of the program's own plan.
    expected = {"ENGINE": plans + 2, "ENGINECFG": plans + 1, "ENGINEHEUR": 0, "EXECUTION_PLAN": plans}
    assert {name: made[name] for name in PLANNING} == expected


@pytest.mark.parametrize("pass_", PASSES)
def test_an_execution_plans_nothing(pass_: str, library: str, tmp_path: Path) -> None:
    cases = [case(GRAPH_PROBLEM, pass_, "graph", repeat=repeat) for repeat in (1, 5)]
    run_online(tmp_path, cases[0])
    set_times(tmp_path, small_is_fast(UNTRANSFORMED[pass_][0]))
    once, often = (added_calls(tmp_path, library, convolution) for convolution in cases)
    assert often["VARIANT_PACK"] - once["VARIANT_PACK"] == 4 * 7
    assert {name: often[name] for name in PLANNING} == {name: once[name] for name in PLANNING}


@pytest.mark.parametrize("pass_", PASSES)
def test_what_was_made_for_a_plan_goes_with_it(pass_: str, library: str, tmp_path: Path) -> None:
    convolution = case(GRAPH_PROBLEM, pass_, "graph")
    run_online(tmp_path, convolution)
    set_times(tmp_path, small_is_fast(UNTRANSFORMED[pass_][0]))
    added_calls(tmp_path, library, convolution)
    calls = calls_in(tmp_path / "under")
    created = sum(count for name, count in calls.items() if name.isupper())
    assert created == calls["cudnnBackendDestroyDescriptor"] > 0


@pytest.mark.parametrize("pass_", PASSES)
def test_callers_of_the_legacy_api_are_answered_without_asking_for_algorithms(
    pass_: str, library: str, tmp_path: Path
) -> None:
    convolution = case(LEGACY_PROBLEM, pass_)
    run_online(tmp_path, convolution)
    made = added_calls(tmp_path, library, convolution)
    assert [name for name in made if name.endswith(("_v7", "_DESCRIPTOR")) or name.isupper()] == []


@pytest.mark.parametrize("pass_", PASSES)
def test_a_plan_file_is_followed_without_asking_for_engines(
    pass_: str, engine: Engine, library: str, tmp_path: Path
) -> None:
    parts = [(3, UNTRANSFORMED[pass_][1]), (3, UNTRANSFORMED[pass_][0]), (1, UNTRANSFORMED[pass_][3])]
    plan = shim_cases.write_plan(engine, tmp_path / "small.plan", {(GRAPH_PROBLEM, pass_): [parts]})
    convolution = case(GRAPH_PROBLEM, pass_, "graph")
    made = added_calls(tmp_path, library, convolution, MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan))
    assert (made["ENGINEHEUR"], made["EXECUTION_PLAN"]) == (0, 4 if pass_ == "backward_filter" else 2)


@pytest.mark.parametrize("api", PROBLEMS)
def test_a_larger_limit_measures_only_what_was_too_large_before(api: str, tmp_path: Path) -> None:
    cases = [case(PROBLEMS[api], pass_, HABITS[api]) for pass_ in PASSES]
    first = run_online(tmp_path, *cases, MUCUDNN_WORKSPACE_LIMIT="64KiB")
    second = run_online(tmp_path, *cases)
    third = run_online(tmp_path, *cases, MUCUDNN_WORKSPACE_LIMIT="1MiB")
    rows = [row for _, rows, _ in parse_journal(journal_in(tmp_path).read_text()) for row in rows]
    small = sum(workspace <= 64 * 1024 for *_, workspace, _, _, _, _ in rows)
    assert 0 < small < len(rows) == len({(str(problem), pass_, name) for problem, pass_, name, *_ in rows})
    assert [measurements(ran) for ran in (first, second, third)] == [small, len(rows) - small, 0]


@pytest.mark.parametrize("api", PROBLEMS)
def test_a_journal_without_lists_of_candidates_serves_and_gets_them(
    api: str, library: str, tmp_path: Path
) -> None:
    cases = [case(PROBLEMS[api], pass_, HABITS[api]) for pass_ in PASSES]
    run_online(tmp_path, *cases)
    old = re.sub("candidates .*\n", "", journal_in(tmp_path).read_text())
    journal_in(tmp_path).write_text(old)
    assert measurements(run_online(tmp_path, *cases)) == 0
    assert journal_in(tmp_path).read_text().startswith(old)
    made = added_calls(tmp_path, library, *cases)
    assert [name for name in made if name == "ENGINEHEUR" or name.endswith("_v7")] == []


@pytest.mark.parametrize("api", PROBLEMS)
@pytest.mark.parametrize("pass_", PASSES)
def test_strict_numerics_keep_fft_and_winograd_out(pass_: str, api: str, tmp_path: Path) -> None:
    convolution = case(PROBLEMS[api], pass_, HABITS[api])
    run_online(tmp_path, convolution)
    # FFT and Winograd are by far the fastest.
    set_times(tmp_path, lambda size, algorithm: size * (1000.0 if algorithm in UNTRANSFORMED[pass_] else 1.0))
    results = run_online(tmp_path, convolution, MUCUDNN_NUMERICS="strict")
    assert measurements(results) == 0
    [named] = re.findall("the fastest that fits: (.*)", results.stderr)
    assert set(map(without_knobs, re.findall(r"\d+\*\d+ (\S+)", named))) <= set(UNTRANSFORMED[pass_])
    check_results(
        [convolution], results, [[LEGACY_NUMBERS[pass_][name] for name in UNTRANSFORMED[pass_][2:]]], tmp_path
    )


def test_an_algorithm_that_failed_when_it_was_measured_is_not_tried_again(
    library: str, tmp_path: Path
) -> None:
    convolution = case(GRAPH_PROBLEM, "forward", "graph")
    failing = {"HOST_ENGINE": host_library(), "MUCUDNN_LIBRARY": library}
    first = run_online(tmp_path, convolution, REFUSED="cudnnConvolutionForward", **failing)
    journal = journal_in(tmp_path).read_text()
    assert "IMPLICIT_GEMM" not in journal
    assert "eng0" in journal
    second = run_online(tmp_path, convolution, **failing)
    assert (measurements(first) > 0, measurements(second)) == (True, 0)


@pytest.mark.parametrize(
    "refused", ["cudnnGetConvolutionForwardWorkspaceSize", "cudnnGetConvolutionForwardAlgorithm_v7"]
)
def test_candidates_that_the_library_failed_to_tell_of_are_asked_for_again(
    refused: str, library: str, tmp_path: Path
) -> None:
    convolution = case(GRAPH_PROBLEM, "forward", "graph")
    wrapped = {"HOST_ENGINE": host_library(), "MUCUDNN_LIBRARY": library}
    first = run_online(tmp_path, convolution, REFUSED=refused, **wrapped)
    assert measurements(first) > 0  # those of the other candidates
    assert "candidates" not in journal_in(tmp_path).read_text()
    run_online(tmp_path, convolution, **wrapped)
    assert "candidates graph IMPLICIT_GEMM:0:deterministic,strided " in journal_in(tmp_path).read_text()
    assert added_calls(tmp_path, library, convolution)["ENGINEHEUR"] == 0
    assert {(size, "WINOGRAD_NONFUSED") for size in (1, 2, 4, 7)} < set(rows_in(tmp_path))


def test_micro_batches_are_measured_once_for_all_mini_batches(tmp_path: Path) -> None:
    sizes = {7: {1, 2, 4, 7}, 6: {6}, 4: set()}  # the new sizes of each mini-batch, one after the other
    run_online(
        tmp_path, *(case(GRAPH_PROBLEM.replace("mb7", f"mb{size}"), "forward", "graph") for size in sizes)
    )
    documents = parse_journal(journal_in(tmp_path).read_text())
    assert [{row[0].mini_batch for row in rows} for _, rows, _ in documents] == [
        new for new in sizes.values() if new
    ]


def test_a_journal_that_cannot_be_read_or_written_is_a_warning_each(tmp_path: Path) -> None:
    journal_in(tmp_path).mkdir()
    results = run_online(tmp_path, case(GRAPH_PROBLEM, "forward", "graph"), MUCUDNN_LOG="warning")
    assert [line.split(": ")[1] for line in results.warnings] == [
        "earlier measurements are not known",
        "measurements are not kept",
    ]
    assert results.facts[0]["statuses"] == [0]


def test_fused_convolutions_are_found_in_the_journal_beside_the_plain_one(tmp_path: Path) -> None:
    cases = [
        case(f"{GRAPH_PROBLEM}{epilogue}", "forward", "graph") for epilogue in ("", "+bias", "+bias+relu")
    ]
    first, second = run_online(tmp_path, *cases), run_online(tmp_path, *cases[::-1])
    assert (measurements(first) > 0, measurements(second)) == (True, 0)


def test_slices_are_aligned_as_planned_whatever_their_sizes(
    engine: Engine, library: str, tmp_path: Path
) -> None:
    problem = str(shim_cases.problem_of({"problem": "f16:nchw:default:mb9_ic3ih5_oc4_kh3_ph1"}))
    plan = shim_cases.write_plan(
        engine, tmp_path / "odd.plan", {(problem, "forward"): [[(5, "eng0"), (4, "eng0")]]}
    )
    convolution = case(problem, "forward", "graph")
    made = added_calls(tmp_path, library, convolution, MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan))
    assert made["EXECUTION_PLAN"] == 2, "planning must make one for each size, executing none"


def test_where_slices_fail_the_callers_own_engine_does_the_rest_and_no_other_is_asked_for(
    engine: Engine, library: str, tmp_path: Path
) -> None:
    parts = [(4, "IMPLICIT_GEMM"), (3, "IMPLICIT_GEMM")]
    plan = shim_cases.write_plan(engine, tmp_path / "failing.plan", {(GRAPH_PROBLEM, "forward"): [parts]})
    convolution = case(GRAPH_PROBLEM, "forward", "graph", engine=2, repeat=2)
    failing = {"REFUSED": "cudnnConvolutionForward", "MUCUDNN_MODE": "plan", "MUCUDNN_PLAN": str(plan)}
    made = added_calls(tmp_path, library, convolution, **failing)
    assert (made["ENGINEHEUR"], made["EXECUTION_PLAN"]) == (0, 2)
