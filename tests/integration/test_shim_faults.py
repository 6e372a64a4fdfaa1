"""After any failure in the shim or below it, the program gets the right result, or an error status once."""

from __future__ import annotations

from pathlib import Path

import pytest
import shim_cases
from fault_attempts import attempts, check_output
from reference import PASSES
from shim_cases import case
from wrapped_library import build_wrapper

from mucudnn._native import Engine
from mucudnn.problems.kernels import Kernel

SMALL = "f32:nchw:default:mb6_ic4ih10_oc6_kh3_ph1"
NOT_INITIALIZED, INTERNAL_ERROR = 1001, 4000
EXECUTE = {
    ("forward", False): "cudnnConvolutionForward",
    ("forward", True): "cudnnConvolutionBiasActivationForward",
    ("backward_data", False): "cudnnConvolutionBackwardData",
    ("backward_filter", False): "cudnnConvolutionBackwardFilter",
}


@pytest.fixture(scope="module")
def failing_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_wrapper(tmp_path_factory.mktemp("failing"))


def write_small_plan(engine: Engine, folder: Path, tile: str = "") -> Path:
    names = {"forward": "WINOGRAD_NONFUSED", "backward_data": "ALGO_0", "backward_filter": "ALGO_0"}
    kernels = {(SMALL, pass_): [[(2, names[pass_] + tile)] * 3] for pass_ in PASSES}
    return shim_cases.write_plan(engine, folder / "small.plan", kernels)


@pytest.fixture
def plan(engine: Engine, tmp_path: Path) -> Path:
    return write_small_plan(engine, tmp_path)


HABITS = [("forward", False), ("forward", True), ("backward_filter", False), ("backward_data", False)]
TILES = ["", ".tile=4"]


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("pass_", "fused"), HABITS)
def test_any_one_call_of_the_library_may_fail(
    pass_: str, fused: bool, tile: str, failing_library: Path, engine: Engine, tmp_path: Path
) -> None:
    # beta is not 0, so a slice or a tile that is computed twice gives a wrong result.
    plan = write_small_plan(engine, tmp_path, tile)
    cases = [case(SMALL, pass_, "get", beta=0.5, fused=fused, repeat=2)]
    first, *others = attempts(
        cases, tmp_path, failing_library, "once",
        MUCUDNN_LIBRARY=str(failing_library), MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan), MUCUDNN_LOG="off",
    )  # fmt: skip
    for outcome in others:
        what = f"call {outcome['number']} fails, {outcome['failed']}"
        if outcome["error"]:
            assert outcome["error"].startswith(f"{outcome['failed']}: {INTERNAL_ERROR}"), what
        else:
            check_output(outcome, first, what)
    survived = [outcome["failed"] for outcome in others if not outcome["error"]]
    assert {"cudnnGetConvolutionNdDescriptor"} < set(survived)
    executed = [name for name in survived if name == EXECUTE[pass_, fused]]
    assert len(executed) == 2 * (3 if tile == "" else 6 * 3)  # the call is made twice


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("pass_", "epilogue"), [*((p, "") for p in PASSES), ("forward", "+add+bias+relu")])
@pytest.mark.parametrize(("kind", "limit"), [("once", "none"), ("sticky", "64KiB")])
def test_calls_of_the_library_may_fail_below_the_graph_api(
    kind: str, limit: str, pass_: str, epilogue: str, tile: str,
    failing_library: Path, engine: Engine, tmp_path: Path,
) -> None:  # fmt: skip
    # The limit is below or above the workspace of the program's own execution plan. A slice or a tile that is
    # computed twice gives a wrong result, because beta is 1 or the added tensor is the output itself.
    beta = 1.0 if pass_ == "backward_filter" else 0.0
    alias = {"operand0": "y"} if epilogue else {}
    problem = SMALL.replace("default", "fma") + epilogue
    number = {"forward": 2, "backward_data": 0, "backward_filter": 0}[pass_]
    cases = [case(problem, pass_, "graph", engine=number, beta=beta, alias=alias, repeat=2)]
    kernels = {(problem, pass_): [[(2, f"eng{number}{tile}")] * 3]}
    plan = shim_cases.write_plan(engine, tmp_path / "graph.plan", kernels)
    first, *others = attempts(
        cases, tmp_path, failing_library, kind,
        MUCUDNN_LIBRARY=str(failing_library), MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan), MUCUDNN_LOG="off",
        MUCUDNN_WORKSPACE_LIMIT=limit,
    )  # fmt: skip
    for outcome in others:
        if outcome["error"]:
            assert outcome["error"].startswith(f"{INTERNAL_ERROR}: "), outcome
        elif kind == "sticky" and outcome["failed"]:
            assert set(outcome["done"][0]["statuses"]) <= {0, INTERNAL_ERROR}
        else:
            check_output(outcome, first, f"call {outcome['number']} fails, {outcome['failed']}")
    assert {outcome["failed"] for outcome in others if not outcome["error"]} >= {
        "once": {"cudnnBackendFinalize"},
        "sticky": {"cudnnBackendExecute"},
    }[kind]


@pytest.mark.parametrize(("tile", "executions"), [("", 3), (".tile=4", 6 * 3)])
def test_where_the_callers_own_algorithm_does_not_fit_another_does_the_rest(
    tile: str, executions: int, failing_library: Path, engine: Engine, tmp_path: Path
) -> None:
    plan = write_small_plan(engine, tmp_path, tile)
    kernel = Kernel(shim_cases.problem_of(case(SMALL, "")), "forward").at(2)
    workspace = engine.prepare(kernel, [(2, "WINOGRAD_NONFUSED" + tile)]).workspace
    cases = [case(SMALL, "forward", "fixed", algorithm=7, workspace=workspace, beta=0.5)]
    first, *others = attempts(
        cases, tmp_path, failing_library, "once",
        MUCUDNN_LIBRARY=str(failing_library), MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan), MUCUDNN_LOG="off",
    )  # fmt: skip
    executing = [outcome for outcome in others if outcome["failed"] == "cudnnConvolutionForward"]
    assert len(executing) == executions
    for outcome in executing:
        check_output(outcome, first, f"call {outcome['number']} fails")


@pytest.mark.parametrize("tile", TILES)
@pytest.mark.parametrize(("pass_", "fused"), HABITS[1:3])
def test_a_library_that_executes_nothing_any_more_gives_its_own_status(
    pass_: str, fused: bool, tile: str, failing_library: Path, engine: Engine, tmp_path: Path
) -> None:
    plan = write_small_plan(engine, tmp_path, tile)
    cases = [case(SMALL, pass_, "get", beta=0.5, fused=fused)]
    first, *others = attempts(
        cases, tmp_path, failing_library, "sticky",
        MUCUDNN_LIBRARY=str(failing_library), MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan), MUCUDNN_LOG="off",
    )  # fmt: skip
    for outcome in others:
        if outcome["failed"]:
            assert (outcome["error"], outcome["done"][0]["statuses"]) == ("", [INTERNAL_ERROR])
        else:
            check_output(outcome, first, f"from call {outcome['number']} on")
