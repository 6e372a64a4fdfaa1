"""A program with cudnn-frontend's Python module runs on the host engine and under `mucudnn run`."""

import importlib.util
import sys
from pathlib import Path

import pytest
import shim_cases
from frontend_programs import Case, kernel, run_program
from graph_numbers import EXPLICIT_GEMM, LEGACY_NUMBERS
from programs import is_missing
from reference import PASSES

from mucudnn._native import Engine

EPILOGUES = {"bias_relu": "+bias+relu", "fused": "+add+bias+relu"}
OPERATIONS = (*PASSES, "fused")
CLIENT = (sys.executable, Path(__file__).with_name("frontend_module_client.py"))
UNDER_MUCUDNN = (sys.executable, "-m", "mucudnn", "run", "--", *CLIENT)

each_operation = pytest.mark.parametrize("operation", OPERATIONS)


def explicit_gemm(operation: str) -> int:
    return EXPLICIT_GEMM["forward" if operation == "fused" else operation]


@pytest.fixture(scope="module", autouse=True)
def _module() -> None:
    if importlib.util.find_spec("cudnn") is None:
        is_missing("needs the module cudnn: pip install --no-deps nvidia-cudnn-frontend")


@each_operation
def test_every_plan_of_the_heuristics_is_right(operation: str, search_path: str) -> None:
    results = run_program(CLIENT, Case(operation, kernel()), "a", LD_LIBRARY_PATH=search_path)
    assert len({*results.lines}) == 5
    (fallback,) = run_program(
        CLIENT, Case(operation, kernel()), "fallback", LD_LIBRARY_PATH=search_path
    ).lines
    assert fallback in results.lines


@each_operation
@pytest.mark.parametrize(("data_type", "layout"), [("f32", "nhwc"), ("f16", "nchw"), ("bf16", "nhwc")])
def test_every_type_and_layout_is_right(
    operation: str, data_type: str, layout: str, search_path: str
) -> None:
    run_program(CLIENT, Case(operation, kernel(data_type, layout)), "a", LD_LIBRARY_PATH=search_path)


@each_operation
def test_an_engine_can_be_asked_for_with_its_knob(operation: str, search_path: str) -> None:
    name = f"eng{explicit_gemm(operation)}_k2=3"
    results = run_program(CLIENT, Case(operation, kernel()), name, LD_LIBRARY_PATH=search_path)
    assert results.lines == [name]


@pytest.mark.parametrize("operation", [*PASSES, *EPILOGUES])
def test_under_mucudnn_run_its_plans_are_divided(
    operation: str, search_path: str, engine: Engine, tmp_path: Path
) -> None:
    case = Case(operation, kernel())
    pass_ = case.pass_
    implicit = f"eng{next(iter(LEGACY_NUMBERS[pass_].values()))}"
    parts = [(2, implicit), (1, f"eng{EXPLICIT_GEMM[pass_]}_k2=1")]
    problem = f"{case.problem.replace(math='fma')}{EPILOGUES.get(operation, '')}"
    # For deselect_workspace_greater_than() the module reads the workspace of an engine configuration, and the
    # drop-in never uses more than a program has read. So where it reads 0, the second configuration is used.
    frugal = [(2, implicit), (1, implicit)]
    plan = shim_cases.write_plan(engine, tmp_path / "module.plan", {(problem, pass_): [parts, frugal]})
    shim = {"MUCUDNN_LIBRARY": "host", "MUCUDNN_LOG": "info", "MUCUDNN_PLAN": str(plan)}
    results = run_program(UNDER_MUCUDNN, case, "a", LD_LIBRARY_PATH=search_path, **shim)
    assert "5 of 5 convolutions divided" in results.log


@each_operation
def test_under_mucudnn_run_a_call_outside_the_plan_is_its_own_to_the_bit(
    operation: str, search_path: str, engine: Engine, tmp_path: Path
) -> None:
    case = Case(operation, kernel())
    plan = shim_cases.write_plan(engine, tmp_path / "empty.plan", {})
    shim = {"MUCUDNN_LIBRARY": "host", "MUCUDNN_LOG": "info", "MUCUDNN_PLAN": str(plan)}
    under = run_program(UNDER_MUCUDNN, case, "a", LD_LIBRARY_PATH=search_path, **shim)
    alone = run_program(CLIENT, case, "a", LD_LIBRARY_PATH=search_path)
    assert "0 of 5 convolutions divided, 5 passed through" in under.log
    assert under.lines == alone.lines
    assert all(
        (actual == expected).all() for actual, expected in zip(under.outputs, alone.outputs, strict=True)
    )
