"""Client programs under `mucudnn run`, and what decides how their convolutions are divided.

What is measured depends on the machine; where a test needs to know what is decided, it writes a plan, or a
journal with the times of a machine on which small micro-batches always win.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import shim_cases
from clients import Case, Programs, Ran, decoded
from reference import OUTPUT
from shim_cases import ENUMERATORS, ROOMY, algorithms, identity

from mucudnn._native import Engine, format_plan
from mucudnn.problems.kernels import Kernel

PART = r"\d+\*\d+ (\w+)"


@dataclass(frozen=True)
class Desk:
    """Runs clients on the host engine, alone and under mucudnn, in a folder with a cache of its own."""

    programs: Programs
    host_engine: dict[str, str]
    folder: Path

    @property
    def journal(self) -> Path:
        return self.folder / "cache.sqlite.journal"

    def alone(self, habit: str, case: Case, **more: int) -> Ran:
        return self.programs.run(habit, case, self.folder, self.host_engine, **more)

    def under(self, habit: str, case: Case, *flags: str | Path, command: str = "run", **more: int) -> Ran:
        variables = {
            "MUCUDNN_LIBRARY": "host",
            "MUCUDNN_LOG": "debug",
            "MUCUDNN_CACHE": str(self.folder / "cache.sqlite"),
        }
        under = (sys.executable, "-m", "mucudnn", command, *flags, "--")
        environment = {**self.host_engine, **variables}
        return self.programs.run(habit, case, self.folder, environment, under=under, **more)

    def error(self, case: Case, output: bytes, *, fused: bool = False) -> float:
        """The norm of the output's error; `fused`: of that of bias_activation."""
        name, exact = OUTPUT[case.pass_], case.exact()
        if fused:
            bias = case.values()["bias"].reshape(-1, *[1] * case.problem.dims)
            exact = np.maximum(exact + bias, 0)
        return float(np.linalg.norm(decoded(output, case.shapes()[name], case.problem) - exact))

    def check(self, case: Case, output: bytes, used: set[str], *, fused: bool = False) -> None:
        """Hold a result to the contract: to the worst of the algorithms `used`, each run undivided.

        Bias and activation leave no more of an error than the convolution had.
        """
        whole = replace(case, limit=ROOMY)
        worst = max(
            self.error(case, self.alone("fixed", whole, algorithm=ENUMERATORS[case.pass_][name]).output)
            for name in used
        )
        assert self.error(case, output, fused=fused) <= 2 * worst + case.tolerance()


@pytest.fixture
def desk(programs: Programs, host_engine: dict[str, str], tmp_path: Path) -> Desk:
    return Desk(programs, host_engine, tmp_path)


def summary(ran: Ran) -> str:
    """What was done in all, as the program says at its end."""
    return re.findall(r"^mucudnn: (\d+ of \d+ convolutions .*)$", ran.stderr, re.MULTILINE)[-1]


def points(ran: Ran) -> list[tuple[str, int]]:
    """The configurations that the log names, with their workspace, and how they are divided."""
    found = re.finditer(rf"({PART}(?: \+ {PART})*) in \S+ ms with (\d+) bytes", ran.stderr)
    return [(match[1], int(match.groups()[-1])) for match in found]


def measurements(ran: Ran) -> int:
    return sum(map(int, re.findall(r"measured (\d+) times", ran.stderr)))


def write_plan(engine: Engine, desk: Desk, case: Case, sizes: tuple[int, ...]) -> tuple[Path, set[str]]:
    """A plan with micro-batches of these sizes, each by another algorithm; and the algorithms."""
    names = algorithms(engine, case.problem.replace(mini_batch=1), case.pass_)
    parts = [(size, names[i % len(names)]) for i, size in enumerate(sizes)]
    kernels = {(str(case.problem), case.pass_): [parts]}
    plan = shim_cases.write_plan(engine, desk.folder / "network.plan", kernels)
    return plan, {name for _, name in parts}


def write_journal(engine: Engine, desk: Desk, case: Case) -> None:
    """Times that grow with the square of the micro-batch, and by which the last algorithm is the best."""
    rows, size = [], 1
    while size <= case.problem.mini_batch:
        at = case.problem.replace(mini_batch=size)
        ran = [c for c in engine.enumerate(Kernel(at, case.pass_)) if c.status == "CUDNN_STATUS_SUCCESS"]
        options = [[(size, c.algorithm, size**2 / (i + 1), c.workspace)] for i, c in enumerate(ran)]
        rows.append((at, case.pass_, 1, options[0], options, []))
        size = case.problem.mini_batch if size < case.problem.mini_batch < 2 * size else 2 * size
    desk.journal.write_text(format_plan({**identity(engine), "threads": "1"}, rows))


def workspace_at(engine: Engine, case: Case, micro_batch: int) -> int:
    """The most that any algorithm needs there."""
    found = engine.enumerate(Kernel(case.problem, case.pass_).at(micro_batch))
    return max(c.workspace for c in found if c.status == "CUDNN_STATUS_SUCCESS")
