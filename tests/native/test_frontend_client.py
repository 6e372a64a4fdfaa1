"""A program written against NVIDIA's cudnn-frontend runs on the host engine, and its results are right."""

from pathlib import Path

import frontend_programs
import pytest
import shim_cases
from frontend_programs import Case, Ran, kernel, run_program, shim_variables
from reference import PASSES, Array
from wrapped_library import build_wrapper

from mucudnn._native import Engine, Problem, host_library, most_slices
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
Parts = list[tuple[int, str]]
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


def run_planned(
    program: Path,
    search_path: str,
    case: Case,
    choice: str,
    engine: Engine,
    parts: Parts,
    plan: Path,
    **environment: str,
) -> Ran:
    """Run the program under the drop-in with a plan, in which `parts` divide its convolution."""
    problem = case.problem.replace(math="fma") if case.problem.data_type == "f32" else case.problem
    kernels = {(f"{problem}{EPILOGUES.get(case.operation, '')}", case.pass_): [parts]}
    shim_cases.write_plan(engine, plan, kernels)
    shim = shim_variables(MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan), **environment)
    return run_program(program, case, choice, LD_LIBRARY_PATH=search_path, **shim)


def implicit_engine(case: Case) -> str:
    return "eng0" if case.pass_ == "forward" else "eng1"


@pytest.mark.parametrize("operation", [*PASSES, *EPILOGUES])
@pytest.mark.parametrize("choice", ["a", "engine"])
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
    parts = [(size, implicit_engine(case)) for size in (2, 1)]
    ran = run_planned(program, search_path, case, choice, engine, parts, tmp_path / "frontend.plan")
    divided = len(ran.lines) if most_slices(Kernel(case.problem, case.pass_)) > 1 else 0
    assert f"{divided} of {len(ran.lines)} convolutions divided" in ran.log


@each_operation
def test_under_the_drop_in_a_deserialized_plan_passes_through(
    program: Path, search_path: str, operation: str, engine: Engine, tmp_path: Path
) -> None:
    case = Case(operation, kernel())
    parts = [(size, implicit_engine(case)) for size in (2, 1)]
    library = {"MUCUDNN_LIBRARY": str(build_wrapper(tmp_path)), "HOST_ENGINE": host_library()}
    ran = run_planned(
        program, search_path, case, "json", engine, parts, tmp_path / "frontend.plan", **library
    )
    assert "0 of 1 convolutions divided, 1 passed through (a plan made from JSON)" in ran.log


@pytest.mark.parametrize("operation", [*PASSES, *EPILOGUES])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_under_the_drop_in_one_sample_runs_in_tiles(
    program: Path, search_path: str, operation: str, layout: str, engine: Engine, tmp_path: Path
) -> None:
    case = Case(operation, kernel(layout=layout, mini_batch=1))
    tiles = [(1, f"{implicit_engine(case)}.tile=4")]
    ran = run_planned(program, search_path, case, "a", engine, tiles, tmp_path / "tiles.plan")
    # The program gives an engine that needs no workspace none, but the tiles at the border are copied there.
    count = len(ran.lines) - 1
    assert f"{count} of {count + 1} convolutions divided, {count} of them in tiles, 1 passed" in ran.log
