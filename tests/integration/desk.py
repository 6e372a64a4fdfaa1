"""Helpers that run client programs under `mucudnn run` and control how their convolutions are divided.

Real times depend on the machine. A test that needs a certain decision writes a plan, or a journal whose times
make small micro-batches the fastest.
"""

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
    """A folder with a cache of its own, in which clients run on the host engine, alone or under mucudnn."""

    programs: Programs
    host_engine: dict[str, str]
    folder: Path

    @property
    def journal(self) -> Path:
        return self.folder / "cache.sqlite.journal"

    def alone(self, habit: str, case: Case, **more: int) -> Ran:
        return self.programs.run(habit, case, self.folder, self.host_engine, **more)

    def under(self, habit: str, case: Case, *flags: str | Path, **more: int) -> Ran:
        variables = {
            "MUCUDNN_LIBRARY": "host",
            "MUCUDNN_LOG": "debug",
            "MUCUDNN_CACHE": str(self.folder / "cache.sqlite"),
        }
        under = (sys.executable, "-m", "mucudnn", "run", *flags, "--")
        environment = {**self.host_engine, **variables}
        return self.programs.run(habit, case, self.folder, environment, under=under, **more)

    def error(self, case: Case, output: bytes) -> float:
        """Return the norm of the output's error."""
        shape = case.shapes()[OUTPUT[case.pass_]]
        return float(np.linalg.norm(decoded(output, shape, case.problem) - case.exact()))

    def check(self, case: Case, output: bytes, used: set[str]) -> None:
        """Check that the error is at most twice that of the worst algorithm of `used`, run undivided."""
        whole = replace(case, limit=ROOMY)
        worst = max(
            self.error(case, self.alone("fixed", whole, algorithm=ENUMERATORS[case.pass_][name]).output)
            for name in used
        )
        assert self.error(case, output) <= 2 * worst + case.tolerance()


@pytest.fixture
def desk(programs: Programs, host_engine: dict[str, str], tmp_path: Path) -> Desk:
    return Desk(programs, host_engine, tmp_path)


def summary(ran: Ran) -> str:
    """Return the drop-in's last line: how many convolutions it divided."""
    return re.findall(r"^mucudnn: (\d+ of \d+ convolutions .*)$", ran.stderr, re.MULTILINE)[-1]


def points(ran: Ran) -> list[tuple[str, int]]:
    """Return the configurations that the log names, as text, each with its workspace."""
    matches = re.finditer(rf"({PART}(?: \+ {PART})*) in \S+ ms with (\d+) bytes", ran.stderr)
    return [(match[1], int(match.groups()[-1])) for match in matches]


def measurements(ran: Ran) -> int:
    return sum(map(int, re.findall(r"measured (\d+) times", ran.stderr)))


def write_plan(engine: Engine, desk: Desk, case: Case, sizes: tuple[int, ...]) -> tuple[Path, set[str]]:
    """Write a plan with these sizes of micro-batches and all algorithms. Return path and algorithms."""
    names = algorithms(engine, case.problem.replace(mini_batch=1), case.pass_)
    parts = [(size, names[i % len(names)]) for i, size in enumerate(sizes)]
    kernels = {(str(case.problem), case.pass_): [parts]}
    plan = shim_cases.write_plan(engine, desk.folder / "network.plan", kernels)
    return plan, {name for _, name in parts}


def write_journal(engine: Engine, desk: Desk, case: Case) -> None:
    """Write a journal whose times grow with the square of the micro-batch. The last algorithm is fastest."""
    rows, kernels, size = [], 0, 1
    while size <= case.problem.mini_batch:
        at = case.problem.replace(mini_batch=size)
        ran = [c for c in engine.enumerate(Kernel(at, case.pass_)) if c.status == "CUDNN_STATUS_SUCCESS"]
        times = [size**2 / (i + 1) for i in range(len(ran))]
        rows.append(f"kernel {case.pass_} 1 {at}")
        rows += [
            f"measured {c.algorithm}:{ms}:{c.workspace}:{ms}:{ms}:0" for c, ms in zip(ran, times, strict=True)
        ]
        kernels += 1
        size = case.problem.mini_batch if size < case.problem.mini_batch < 2 * size else 2 * size
    head = format_plan({**identity(engine), "threads": "1"}, []).splitlines()[:-1]
    desk.journal.write_text("\n".join([*head, *rows, f"end {kernels}"]) + "\n")


def workspace_at(engine: Engine, case: Case, micro_batch: int) -> int:
    """Return the largest workspace of any algorithm at this micro-batch size."""
    candidates = engine.enumerate(Kernel(case.problem, case.pass_).at(micro_batch))
    return max(c.workspace for c in candidates if c.status == "CUDNN_STATUS_SUCCESS")


def dividing_flags(
    mode: str, engine: Engine, desk: Desk, case: Case, sizes: tuple[int, ...] = (3, 3, 1)
) -> tuple[list[str], set[str]]:
    """Return the flags of a run that divides the case, and the algorithms that the run may use."""
    if mode == "plan":
        plan, used = write_plan(engine, desk, case, sizes)
        return ["--plan", str(plan)], used
    write_journal(engine, desk, case)
    names = set(algorithms(engine, case.problem, case.pass_))
    return ["--workspace", str(workspace_at(engine, case, 1))], names & ENUMERATORS[case.pass_].keys()
