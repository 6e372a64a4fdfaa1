"""A program written against NVIDIA's cudnn-frontend runs on the host engine, and its results are right."""

from pathlib import Path

import frontend_programs
import pytest
import shim_cases
from frontend_programs import Case, kernel, run_program, shim_variables
from reference import PASSES, Array

from mucudnn._native import Engine, Problem, most_slices
from mucudnn.problems.kernels import Kernel


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return frontend_programs.compile_program("frontend_client.cpp", tmp_path_factory.mktemp("frontend"))


def run(program: Path, search_path: str, case: Case, choice: str) -> tuple[list[str], list[Array]]:
    """Run the program. Return the names of the plans that it built, and their outputs."""
    ran = run_program(program, case, choice, LD_LIBRARY_PATH=search_path)
    return ran.lines, ran.outputs


EPILOGUES = {
    "bias": "+bias",
    "bias_relu": "+bias+relu",
    "fused": "+add+bias+relu",
    "swapped": "+add+bias+relu",
}
OPERATIONS = ("forward", "backward_data", "backward_filter", "fused")
each_operation = pytest.mark.parametrize("operation", OPERATIONS)


@each_operation
@pytest.mark.parametrize(("mode", "plans"), [("a", 5), ("b", 5), ("fallback", 1)])
def test_every_plan_of_every_heuristic_mode_is_right(
    program: Path, search_path: str, operation: str, mode: str, plans: int
) -> None:
    built, _ = run(program, search_path, Case(operation, kernel()), mode)
    assert len(built) == plans
    assert len(set(built)) == plans


@each_operation
def test_every_engine_can_be_asked_for_by_its_number_and_knobs(
    program: Path, search_path: str, operation: str
) -> None:
    by_number, _ = run(program, search_path, Case(operation, kernel()), "engine")
    by_heuristics, _ = run(program, search_path, Case(operation, kernel()), "a")
    tiled = "eng2" if operation in ("forward", "fused") else "eng0"
    assert {*by_number} - {*by_heuristics} == {f"{tiled}_k2={size}" for size in (1, 2, 3)}
    assert {*by_heuristics} < {*by_number}


@each_operation
def test_a_plan_survives_serialization(program: Path, search_path: str, operation: str) -> None:
    plans, outputs = run(program, search_path, Case(operation, kernel()), "json")
    best, expected = run(program, search_path, Case(operation, kernel()), "a")
    assert plans == best[:1]
    assert (outputs[0] == expected[0]).all()


@each_operation
@pytest.mark.parametrize("data_type", ["f32", "f16", "bf16"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("mini_batch", [1, 7])
def test_every_type_and_layout_is_right(
    program: Path, search_path: str, operation: str, data_type: str, layout: str, mini_batch: int
) -> None:
    run(program, search_path, Case(operation, kernel(data_type, layout, mini_batch)), "a")


@each_operation
@pytest.mark.parametrize(
    "problem",
    [
        Problem(mini_batch=3, in_channels=4, out_channels=6, input=(9, 8), kernel=(3, 3), stride=(2, 2)),
        Problem(mini_batch=3, in_channels=4, out_channels=6, input=(9, 8), kernel=(3, 3), groups=2),
        Problem(mini_batch=2, in_channels=3, out_channels=2, input=(4, 5, 6), kernel=(2, 2, 2)),
    ],
    ids=["strides", "groups", "3-D"],
)
def test_other_geometries_are_right(
    program: Path, search_path: str, operation: str, problem: Problem
) -> None:
    run(program, search_path, Case(operation, problem), "a")


@pytest.mark.parametrize("operation", [*PASSES, *EPILOGUES])
@pytest.mark.parametrize("choice", ["a", "engine", "json"])
@pytest.mark.parametrize("data_type", ["f32", "f16"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_under_the_drop_in_every_divisible_plan_is_divided(
    program: Path,
    search_path: str,
    operation: str,
    choice: str,
    data_type: str,
    layout: str,
    engine: Engine,
    tmp_path: Path,
) -> None:
    case = Case(operation, kernel(data_type, layout))
    problem = case.problem.replace(math="fma") if data_type == "f32" else case.problem
    pass_ = case.pass_
    implicit = "eng0" if pass_ == "forward" else "eng1"
    text = f"{problem}{EPILOGUES.get(operation, '')}"
    kernels = {(text, pass_): [[(2, implicit), (1, implicit)]]}
    plan = shim_cases.write_plan(engine, tmp_path / "frontend.plan", kernels)
    shim = shim_variables(MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan))
    ran = run_program(program, case, choice, LD_LIBRARY_PATH=search_path, **shim)
    plans, log = ran.lines, ran.log
    divided = len(plans) if most_slices(Kernel(problem, pass_)) > 1 else 0
    assert f"{divided} of {len(plans)} convolutions divided" in log
