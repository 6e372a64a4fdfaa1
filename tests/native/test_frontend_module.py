"""A program with cudnn-frontend's Python module runs on the host engine and under `mucudnn run`."""

import importlib.util
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import programs
import pytest
import shim_cases
from graph_numbers import EXPLICIT_GEMM, LEGACY_NUMBERS
from graph_operations import loaded, shapes, stored
from reference import EPSILON, OUTPUT, PASSES, Array, convolve

from mucudnn._native import Engine, Problem, most_slices, parse_descriptor
from mucudnn.problems.kernels import Kernel

EPILOGUES = {
    "bias": "+bias",
    "bias_relu": "+bias+relu",
    "fused": "+add+bias+relu",
    "swapped": "+add+bias+relu",
}
OPERATIONS = (*PASSES, *EPILOGUES)
CLIENT = (sys.executable, Path(__file__).with_name("frontend_module_client.py"))
UNDER_MUCUDNN = (sys.executable, "-m", "mucudnn", "run", "--", *CLIENT)
KERNEL = parse_descriptor("mb3_ic4ih9iw8_oc6_kh3_ph1")[0]

each_operation = pytest.mark.parametrize("operation", OPERATIONS)


@pytest.fixture(scope="module", autouse=True)
def _module() -> None:
    if importlib.util.find_spec("cudnn") is None:
        programs.is_missing("needs the module cudnn: pip install --no-deps nvidia-cudnn-frontend")


def pass_of(operation: str) -> str:
    """Return the pass of an operation. Fused operations are forward."""
    return operation if operation in PASSES else "forward"


def explicit_gemm(operation: str) -> int:
    return EXPLICIT_GEMM[pass_of(operation)]


def implicit_gemm(operation: str) -> str:
    return f"eng{next(iter(LEGACY_NUMBERS[pass_of(operation)].values()))}"


def operands_of(problem: Problem) -> list[Array]:
    """Return x, w, y, a residual and a bias, channels first, rounded to the data type."""
    x, w, y = shapes(problem).values()
    random, type_ = np.random.default_rng(3), problem.data_type
    return [
        loaded(stored(random.uniform(-1, 1, size), type_, "nchw"), size, type_, "nchw")
        for size in (x, w, y, y, (1, y[1], *[1] * problem.dims))
    ]


def exact(operation: str, problem: Problem, operands: list[Array]) -> tuple[Array, float]:
    """Return the output in fp64, and the scale of its rounding errors."""
    *xwy, residual, bias = operands
    result = convolve(problem, pass_of(operation), *xwy)
    scale = float(np.linalg.norm(convolve(problem, pass_of(operation), *map(np.abs, xwy))))
    if operation in PASSES:
        return result, scale
    result = result + bias + (residual if operation in ("fused", "swapped") else 0)
    result = result if operation == "bias" else np.maximum(result, 0)
    return result, scale + float(np.linalg.norm(np.abs(residual) + np.abs(bias)))


@dataclass(frozen=True)
class Ran:
    plans: list[str]  # their names
    outputs: list[Array]
    log: str  # printed by the drop-in


def run_program(
    operation: str, problem: Problem, choice: str, program: Sequence[str | Path] = CLIENT, **variables: str
) -> Ran:
    """Run the program and check each of its outputs against fp64."""
    operands = operands_of(problem)
    x, w, _ = shapes(problem).values()
    described = [",".join(map(str, row)) for row in (x, w, (problem.padding[0], problem.stride[0]))]
    result = subprocess.run(
        [*program, operation, choice, problem.layout, problem.data_type, *described],
        input=b"".join(stored(values, problem.data_type, problem.layout).tobytes() for values in operands),
        env=programs.environment(**variables),
        capture_output=True,
        check=False,
        timeout=programs.HANGS,
    )
    assert result.returncode == 0, result.stderr.decode()
    said = result.stderr.decode().splitlines()
    plans = [line for line in said if not line.startswith("mucudnn: ")]
    expected, scale = exact(operation, problem, operands)
    shape = operands["xwy".index(OUTPUT[pass_of(operation)])].shape
    outputs = [
        loaded(data, shape, problem.data_type, problem.layout)
        for data in np.split(np.frombuffer(result.stdout, np.uint8), len(plans))
    ]
    for plan, output in zip(plans, outputs, strict=True):
        assert np.linalg.norm(output - expected) <= 16 * EPSILON[problem.data_type] * scale, plan
    return Ran(plans, outputs, "\n".join(line for line in said if line.startswith("mucudnn: ")))


def run_planned(
    operation: str,
    problem: Problem,
    engine: Engine,
    plan: Path,
    *configurations: list[tuple[int, str]],
    **variables: str,
) -> Ran:
    """Run the program under the drop-in, with a plan that has these configurations of its convolution."""
    own = problem.replace(math="fma") if problem.data_type == "f32" else problem
    kernel = f"{own}{EPILOGUES.get(operation, '')}", pass_of(operation)
    shim_cases.write_plan(engine, plan, {kernel: list(configurations)} if configurations else {})
    shim = {"MUCUDNN_LIBRARY": "host", "MUCUDNN_LOG": "info", "MUCUDNN_PLAN": str(plan), **variables}
    return run_program(operation, problem, "a", UNDER_MUCUDNN, **shim)


@each_operation
@pytest.mark.parametrize(("mode", "plans"), [("a", 5), ("b", 5), ("fallback", 1)])
def test_every_plan_of_every_heuristic_mode_is_right(
    operation: str, mode: str, plans: int, search_path: str
) -> None:
    built = run_program(operation, KERNEL, mode, LD_LIBRARY_PATH=search_path).plans
    assert len(built) == len({*built}) == plans


@each_operation
@pytest.mark.parametrize(
    "problem",
    [
        "f32:nhwc:default:mb3_ic4ih9iw8_oc6_kh3_ph1",
        "f16:nchw:default:mb1_ic4ih9iw8_oc6_kh3_ph1",
        "bf16:nhwc:default:mb7_ic4ih9iw8_oc6_kh3_ph1",
        "mb3_ic4ih9iw8_oc6_kh3_sh2",
        "mb3_g2ic4ih9iw8_oc6_kh3",
        "mb2_ic3id4ih5iw6_oc2_kd2kh2",
    ],
)
def test_every_type_layout_and_geometry_is_right(operation: str, problem: str, search_path: str) -> None:
    run_program(operation, parse_descriptor(problem)[0], "a", LD_LIBRARY_PATH=search_path)


@each_operation
def test_an_engine_can_be_asked_for_with_its_knob(operation: str, search_path: str) -> None:
    name = f"eng{explicit_gemm(operation)}_k2=3"
    assert run_program(operation, KERNEL, name, LD_LIBRARY_PATH=search_path).plans == [name]


@each_operation
@pytest.mark.parametrize(("data_type", "layout"), [("f32", "nchw"), ("f32", "nhwc"), ("f16", "nhwc")])
def test_under_mucudnn_run_its_plans_are_divided(
    operation: str, data_type: str, layout: str, search_path: str, engine: Engine, tmp_path: Path
) -> None:
    problem = KERNEL.replace(data_type=data_type, layout=layout)
    implicit = implicit_gemm(operation)
    parts = [(2, implicit), (1, f"eng{explicit_gemm(operation)}_k2=1" if data_type == "f32" else implicit)]
    # For deselect_workspace_greater_than() the module reads the workspace of an engine configuration, and the
    # drop-in never uses more than a program has read. So where it reads 0, the second configuration is used.
    frugal = [(2, implicit), (1, implicit)]
    plan = tmp_path / "module.plan"
    ran = run_planned(operation, problem, engine, plan, parts, frugal, LD_LIBRARY_PATH=search_path)
    divided = len(ran.plans) if most_slices(Kernel(problem, pass_of(operation))) > 1 else 0
    assert f"{divided} of {len(ran.plans)} convolutions divided" in ran.log


@each_operation
def test_under_mucudnn_run_one_sample_runs_in_tiles(
    operation: str, search_path: str, engine: Engine, tmp_path: Path
) -> None:
    tiles = [(1, f"{implicit_gemm(operation)}.tile=4")]
    ran = run_planned(
        operation, KERNEL.replace(mini_batch=1), engine, tmp_path / "tiles.plan", tiles,
        LD_LIBRARY_PATH=search_path,
    )  # fmt: skip
    # An engine without workspace passes through, because copies of border tiles need some.
    count = len(ran.plans) - 1
    assert f"{count} of {count + 1} convolutions divided, {count} of them in tiles, 1 passed" in ran.log


@each_operation
def test_under_mucudnn_run_a_call_outside_the_plan_is_its_own_to_the_bit(
    operation: str, search_path: str, engine: Engine, tmp_path: Path
) -> None:
    plan = tmp_path / "empty.plan"
    under = run_planned(operation, KERNEL, engine, plan, LD_LIBRARY_PATH=search_path)
    alone = run_program(operation, KERNEL, "a", LD_LIBRARY_PATH=search_path)
    assert "0 of 5 convolutions divided, 5 passed through" in under.log
    assert under.plans == alone.plans
    assert all((actual == own).all() for actual, own in zip(under.outputs, alone.outputs, strict=True))
