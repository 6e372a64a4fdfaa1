"""Helpers that build C++ programs against NVIDIA's cudnn-frontend, run them, and check them against fp64."""

import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import nvidia_headers
import programs
from graph_operations import loaded, shapes, stored
from programs import SHIM, preload, run_compiler
from reference import EPSILON, OUTPUT, PASSES, Array, convolve

from mucudnn._native import Problem


def compile_program(name: str, folder: Path) -> Path:
    """Compile the program of a source file in this folder."""
    source, target = Path(__file__).with_name(name), folder / "client"
    includes = [option for path in nvidia_headers.frontend_folders() for option in ("-isystem", str(path))]
    options = ("-DNV_CUDNN_FRONTEND_USE_DYNAMIC_LOADING", *includes)
    result = run_compiler("cpp", *options, source, "-o", target, "-ldl")
    assert result.returncode == 0, result.stderr[-4000:]
    return target


@dataclass
class Case:
    operation: str
    problem: Problem

    @property
    def output(self) -> str:
        """The tensor that the operation writes: x, w or y."""
        return OUTPUT[self.pass_]

    @property
    def pass_(self) -> str:
        """The pass of the operation. Fused operations are forward."""
        return self.operation if self.operation in PASSES else "forward"

    def operands(self) -> list[Array]:
        """Return x, w, y, a residual and a bias, channels first, rounded to the data type."""
        x, w, y = shapes(self.problem).values()
        random = np.random.default_rng(3)
        sizes = (x, w, y, y, (1, y[1], *[1] * self.problem.dims))
        return [self.rounded(random.uniform(-1, 1, size)) for size in sizes]

    def rounded(self, values: Array) -> Array:
        type_ = self.problem.data_type
        return loaded(stored(values, type_, "nchw"), values.shape, type_, "nchw")

    def exact(self, operands: list[Array]) -> tuple[Array, float]:
        """Return the output in fp64, and the scale of its rounding errors."""
        *xwy, residual, bias = operands
        result = convolve(self.problem, self.pass_, *xwy)
        scale = float(np.linalg.norm(convolve(self.problem, self.pass_, *map(np.abs, xwy))))
        if self.operation == self.pass_:
            return result, scale
        result = result + bias + (residual if self.operation in ("fused", "swapped") else 0)
        result = result if self.operation == "bias" else np.maximum(result, 0)
        return result, scale + float(np.linalg.norm(np.abs(residual) + np.abs(bias)))


@dataclass(frozen=True)
class Ran:
    lines: list[str]  # printed by the program, one line for each output
    outputs: list[Array]
    log: str  # printed by the drop-in


def run_program(
    program: Path | Sequence[str | Path], case: Case, choice: str, *options: str, **environment: str
) -> Ran:
    """Run the program and check each of its outputs against fp64."""
    command = [program] if isinstance(program, Path) else program
    problem, operands = case.problem, case.operands()
    x, w, _ = shapes(problem).values()
    described = [",".join(map(str, row)) for row in (x, w, (problem.padding[0], problem.stride[0]))]
    result = subprocess.run(
        [*command, case.operation, choice, problem.layout, problem.data_type, *described, *options],
        input=b"".join(stored(values, problem.data_type, problem.layout).tobytes() for values in operands),
        env=programs.environment(**environment),
        capture_output=True,
        check=False,
        timeout=programs.HANGS,
    )
    assert result.returncode == 0, result.stderr.decode()
    said = result.stderr.decode().splitlines()
    lines = [line for line in said if not line.startswith("mucudnn: ")]
    exact, scale = case.exact(operands)
    outputs = [
        loaded(data, operands["xwy".index(case.output)].shape, problem.data_type, problem.layout)
        for data in np.split(np.frombuffer(result.stdout, np.uint8), len(lines))
    ]
    for line, output in zip(lines, outputs, strict=True):
        assert np.linalg.norm(output - exact) <= 16 * EPSILON[problem.data_type] * scale, line
    return Ran(lines, outputs, "\n".join(line for line in said if line.startswith("mucudnn: ")))


def shim_variables(**environment: str) -> dict[str, str]:
    """Return the variables of a program under the drop-in, by default on the host engine."""
    defaults = {"MUCUDNN_LIBRARY": "host", "MUCUDNN_LOG": "info"}
    return {"LD_PRELOAD": preload(SHIM), **defaults, **environment}


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
