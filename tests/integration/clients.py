"""The client programs of tests/native/clients: compiled once, and run with any environment.

Each program uses cuDNN in the way of one framework and knows nothing of mucudnn. The fixture `programs`
compiles them. The fixture `host_engine` is an environment in which they find the host engine as
`libcudnn.so.9`, and our CUDA runtime.
"""

import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from programs import HANGS, cudart_library, run_compiler
from reference import EPSILON, OUTPUT, Array, convolve
from stand_in_library import build_stand_in

from mucudnn._native import Problem

SOURCES = Path(__file__).parents[1] / "native" / "clients"
HABITS = ("caffe", "pytorch", "fixed")  # the programs that run every pass and take the same arguments
# The numbers of the host engine's implicit GEMM, which needs no workspace and runs every problem.
IMPLICIT_GEMM = {"forward": 0, "backward_data": 1, "backward_filter": 1}


@dataclass(frozen=True)
class Case:
    """A convolution for a client program to make, with the values of its tensors."""

    problem: Problem
    pass_: str = "forward"
    alpha: float = 1.0
    beta: float = 0.0
    limit: int = 2**20

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shapes of x, w and y, channels first."""
        p = self.problem
        return {
            "x": (p.mini_batch, p.in_channels, *p.input),
            "w": (p.out_channels, p.in_channels // p.groups, *p.kernel),
            "y": (p.mini_batch, p.out_channels, *p.output),
        }

    def values(self) -> dict[str, Array]:
        """Return x, w and y: random, the same in each call, and exact in the problem's type."""
        random = np.random.default_rng(1)
        return {
            name: decoded(encoded(random.random(shape) - 0.5, self.problem), shape, self.problem)
            for name, shape in self.shapes().items()
        }

    def arguments(self) -> list[str]:
        """Return the command line without program, algorithm and output."""
        p = self.problem
        sizes = {
            "input": p.input, "kernel": p.kernel, "pad": p.padding, "stride": p.stride,
            "dilation": p.dilation,
        }  # fmt: skip
        return [
            f"pass={self.pass_}", f"type={p.data_type}", f"layout={p.layout}", f"n={p.mini_batch}",
            f"c={p.in_channels}", f"k={p.out_channels}", f"groups={p.groups}",
            *(f"{name}={'x'.join(map(str, size))}" for name, size in sizes.items()),
            f"alpha={self.alpha}", f"beta={self.beta}", f"limit={self.limit}",
        ]  # fmt: skip

    def exact(self) -> Array:
        """Return the exact output, computed in fp64."""
        values = self.values()
        result = convolve(self.problem, self.pass_, values["x"], values["w"], values["y"])
        return self.alpha * result + self.beta * values[OUTPUT[self.pass_]]

    def tolerance(self) -> float:
        """Return the largest allowed norm of the output's error: rounding errors of sums of products."""
        x, w, y = (np.abs(values) for values in self.values().values())
        sums = abs(self.alpha) * convolve(self.problem, self.pass_, x, w, y)
        old = {"x": x, "w": w, "y": y}[OUTPUT[self.pass_]]
        return 2 * EPSILON[self.problem.data_type] * float(np.linalg.norm(sums + abs(self.beta) * old))


def encoded(values: Array, problem: Problem) -> bytes:
    """Return the bytes of the values in the problem's type and layout."""
    if problem.layout == "nhwc" and values.ndim > 1:
        values = np.moveaxis(values, 1, -1)
    if problem.data_type == "bf16":
        return bytes((values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16).tobytes())
    return values.astype(
        {"f32": np.float32, "f64": np.float64, "f16": np.float16}[problem.data_type]
    ).tobytes()


def decoded(data: bytes, shape: tuple[int, ...], problem: Problem) -> Array:
    """Return the values, channels first, of bytes in the problem's type and layout."""
    values: npt.NDArray[np.generic]
    if problem.data_type == "bf16":
        values = (np.frombuffer(data, np.uint16).astype(np.uint32) << 16).view(np.float32)
    else:
        types = {"f32": np.float32, "f64": np.float64, "f16": np.float16}
        values = np.frombuffer(data, types[problem.data_type])
    if problem.layout == "nhwc" and len(shape) > 1:
        return np.moveaxis(values.reshape(shape[0], *shape[2:], shape[1]), -1, 1).astype(np.float64)
    return values.reshape(shape).astype(np.float64)


@dataclass(frozen=True)
class Ran:
    """A program that has ended: its exit code, what it printed, and its output files by suffix."""

    code: int
    stdout: str
    stderr: str
    files: dict[str, bytes]

    @property
    def output(self) -> bytes:
        """The output of a program that succeeded."""
        assert self.code == 0, self.stderr
        return self.files[""]

    @property
    def choice(self) -> tuple[int, int]:
        """The algorithm and the workspace that the program printed as used."""
        match = re.search(r"algorithm (\d+) workspace (\d+)", self.stdout)
        assert match, self.stdout
        return int(match[1]), int(match[2])


@dataclass(frozen=True)
class Programs:
    """The compiled clients."""

    folder: Path

    def run(
        self,
        name: str,
        case: Case,
        scratch: Path,
        environment: Mapping[str, str],
        *,
        algorithm: int | None = None,
        under: Sequence[str | Path] = (),
    ) -> Ran:
        """Run a client with `environment` added to this process's own. It writes its output into `scratch`.

        A client that does not ask cuDNN for an algorithm takes `algorithm`, by default implicit GEMM.
        `under` is the command that runs the client, such as `mucudnn run`.
        """
        output = scratch / "output"
        for file in scratch.glob("output*"):
            file.unlink()
        number = IMPLICIT_GEMM[case.pass_] if algorithm is None else algorithm
        arguments = (*case.arguments(), f"algorithm={number}", f"output={output}")
        command = [*under, self.folder / name, *arguments]
        ran = subprocess.run(
            command,
            input=b"".join(encoded(values, case.problem) for values in case.values().values()),
            env={**os.environ, **environment},
            capture_output=True,
            check=False,
            timeout=HANGS,
        )
        files = {file.name.removeprefix("output"): file.read_bytes() for file in scratch.glob("output*")}
        return Ran(ran.returncode, ran.stdout.decode(), ran.stderr.decode(), files)


def compile_client(source: Path, program: Path, *more: str | Path) -> None:
    """Compile a client. Raise AssertionError with the compiler's messages if that fails."""
    options = ("-O1", "-g", "-Wall", "-Wextra", "-Werror")
    result = run_compiler(source.suffix[1:], *options, source, *more, "-o", program)
    assert result.returncode == 0, result.stderr


def client_sources() -> list[Path]:
    """Return the source files of the clients, one file a program."""
    return sorted([*SOURCES.glob("*.c"), *SOURCES.glob("*.cpp")])


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Programs:
    """Compile all clients, linked against stand-ins with the names and versions of cuDNN and CUDA."""
    folder = tmp_path_factory.mktemp("clients")
    cudnn = build_stand_in(folder / "stand_in")
    for source in client_sources():
        compile_client(source, folder / source.stem, cudnn, cudart_library(), "-pthread")
    return Programs(folder)


@pytest.fixture(scope="session")
def host_engine(search_path: str) -> dict[str, str]:
    """Return an environment in which a program finds the host engine as cuDNN, and our CUDA runtime."""
    return {"LD_LIBRARY_PATH": search_path}
