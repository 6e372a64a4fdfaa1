"""A program written against NVIDIA's cudnn-frontend runs on the host engine, and its results are right."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import nvidia_headers
import pytest
import scipy_openblas32
import shim_cases
from graph_client import loaded, shapes, stored
from programs import SHIM, preload
from reference import EPSILON, OUTPUT, Array, convolve

from mucudnn import _native
from mucudnn._native import Engine, Problem

SOURCE = Path(__file__).parent / "frontend_client.cpp"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiler = os.environ.get("CXX") or shutil.which("c++")
    assert compiler, "needs a C++ compiler: set CXX"
    target = tmp_path_factory.mktemp("frontend") / "client"
    includes = [
        option for folder in nvidia_headers.frontend_folders() for option in ("-isystem", str(folder))
    ]
    options = ["-std=c++17", "-DNV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING", *includes]
    command = [*compiler.split(), *options, str(SOURCE), "-o", str(target), "-ldl"]
    # A preloaded sanitizer is for the program, not for the compiler.
    environment = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr[-4000:]
    return target


@pytest.fixture(scope="module")
def search_path(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Folders with the host engine under cuDNN's name, its CUDA runtime, and the OpenBLAS that it needs."""
    folder = tmp_path_factory.mktemp("lib")
    (folder / "libcudnn.so.9").symlink_to(_native.host_library())
    cudart = Path(_native.cudart_library()).parent
    return f"{folder}:{cudart}:{scipy_openblas32.get_lib_dir()}"


@dataclass
class Case:
    operation: str
    problem: Problem

    def operands(self) -> list[Array]:
        """x, w, y, a residual and a bias, as the data type has them, channels first."""
        x, w, y = shapes(self.problem).values()
        random = np.random.default_rng(3)
        sizes = (x, w, y, y, (1, y[1], *[1] * self.problem.dims))
        return [self.rounded(random.uniform(-1, 1, size)) for size in sizes]

    def rounded(self, values: Array) -> Array:
        type_ = self.problem.data_type
        return loaded(stored(values, type_, "nchw"), values.shape, type_, "nchw")

    def exact(self, operands: list[Array]) -> tuple[Array, float]:
        """The output in fp64, and the scale of its rounding errors."""
        *xwy, residual, bias = operands
        pass_ = "forward" if self.operation == "fused" else self.operation
        result = convolve(self.problem, pass_, *xwy)
        scale = float(np.linalg.norm(convolve(self.problem, pass_, *map(np.abs, xwy))))
        if self.operation != "fused":
            return result, scale
        scale += float(np.linalg.norm(np.abs(residual) + np.abs(bias)))
        return np.maximum(result + residual + bias, 0), scale


def run(
    program: Path, search_path: str, case: Case, choice: str, **environment: str
) -> tuple[list[str], list[Array]]:
    """The plans that were built and their outputs, each checked against fp64."""
    plans, outputs, _ = run_logged(program, search_path, case, choice, **environment)
    return plans, outputs


def run_logged(
    program: Path, search_path: str, case: Case, choice: str, **environment: str
) -> tuple[list[str], list[Array], str]:
    """The same, and what the drop-in said."""
    problem, operands = case.problem, case.operands()
    described = [
        ",".join(map(str, numbers))
        for numbers in (
            shapes(problem)["x"],
            shapes(problem)["w"],
            (problem.padding[0], problem.stride[0]),
        )
    ]
    result = subprocess.run(
        [program, case.operation, choice, problem.layout, problem.data_type, *described],
        input=b"".join(stored(values, problem.data_type, problem.layout).tobytes() for values in operands),
        env={**os.environ, "LD_LIBRARY_PATH": search_path, **environment},
        capture_output=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stderr.decode()
    lines = result.stderr.decode().splitlines()
    plans = [line for line in lines if not line.startswith("mucudnn: ")]
    exact, scale = case.exact(operands)
    pass_ = "forward" if case.operation == "fused" else case.operation
    shape = operands["xwy".index(OUTPUT[pass_])].shape
    outputs = [
        loaded(data, shape, problem.data_type, problem.layout)
        for data in np.split(np.frombuffer(result.stdout, np.uint8), len(plans))
    ]
    for plan, output in zip(plans, outputs, strict=True):
        error = np.linalg.norm(output - exact)
        assert error <= 16 * EPSILON[problem.data_type] * scale, plan
    return plans, outputs, "\n".join(line for line in lines if line.startswith("mucudnn: "))


OPERATIONS = ("forward", "backward_data", "backward_filter", "fused")
each_operation = pytest.mark.parametrize("operation", OPERATIONS)


def kernel(data_type: str = "f32", layout: str = "nchw", mini_batch: int = 3) -> Problem:
    return Problem(
        mini_batch=mini_batch,
        in_channels=4,
        out_channels=6,
        input=(9, 8),
        kernel=(3, 3),
        padding=(1, 1),
        data_type=data_type,
        layout=layout,
    )


@each_operation
@pytest.mark.parametrize(("mode", "plans"), [("a", 4), ("b", 4), ("fallback", 1)])
def test_every_plan_of_every_heuristic_mode_is_right(
    program: Path, search_path: str, operation: str, mode: str, plans: int
) -> None:
    built, _ = run(program, search_path, Case(operation, kernel()), mode)
    assert len(built) == plans
    assert len(set(built)) == plans


@each_operation
def test_every_engine_can_be_asked_for_by_its_number(program: Path, search_path: str, operation: str) -> None:
    by_number, _ = run(program, search_path, Case(operation, kernel()), "engine")
    by_heuristics, _ = run(program, search_path, Case(operation, kernel()), "a")
    assert sorted(by_number) == sorted(by_heuristics)


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


@each_operation
@pytest.mark.parametrize("choice", ["a", "engine", "json"])
@pytest.mark.parametrize("data_type", ["f32", "f16"])
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_under_the_drop_in_every_plan_is_divided(
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
    problem = case.problem.replace(math="strict") if data_type == "f32" else case.problem
    is_forward = operation in ("forward", "fused")
    implicit, pass_ = ("eng0", "forward") if is_forward else ("eng1", operation)
    text = f"{problem}+add+bias+relu" if operation == "fused" else str(problem)
    kernels = {(text, pass_): [[(2, implicit), (1, implicit)]]}
    plan = shim_cases.write_plan(engine, tmp_path / "frontend.plan", kernels)
    shim = {"LD_PRELOAD": preload(SHIM), "MUCUDNN_LIBRARY": "host", "MUCUDNN_LOG": "info"}
    plans, _, log = run_logged(
        program, search_path, case, choice, **shim, MUCUDNN_MODE="plan", MUCUDNN_PLAN=str(plan)
    )
    if choice == "json":
        assert "convolutions divided" not in log, "a plan that comes from text passes through"
    else:
        assert f"{len(plans)} of {len(plans)} convolutions divided" in log
