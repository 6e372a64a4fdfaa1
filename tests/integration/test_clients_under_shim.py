"""Programs that were never changed divide their convolutions under `mucudnn run`, and compute the same.

What is measured depends on the machine; where a test needs to know what is decided, the times come from a
journal that it writes: those of a machine on which small micro-batches always win.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
import shim_cases
from clients import HABITS, Case, Programs, Ran, decoded
from reference import OUTPUT, PASSES
from shim_cases import ENUMERATORS, ROOMY, algorithms, identity
from test_clients import PROBLEMS, problem

from mucudnn._native import Engine, format_plan
from mucudnn.kernels import Flags, read_network

ASKING = ("caffe", "pytorch")  # the habits that ask before they convolve
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

    def check(self, case: Case, ran: Ran, used: set[str], *, fused: bool = False) -> None:
        """Hold a result to the contract: to the worst of the algorithms `used`, each run undivided.

        Bias and activation leave no more of an error than the convolution had.
        """
        whole = replace(case, limit=ROOMY)
        worst = max(
            self.error(case, self.alone("fixed", whole, algorithm=ENUMERATORS[case.pass_][name]).output)
            for name in used
        )
        assert self.error(case, ran.output, fused=fused) <= 2 * worst + case.tolerance()


@pytest.fixture
def desk(programs: Programs, host_engine: dict[str, str], tmp_path: Path) -> Desk:
    return Desk(programs, host_engine, tmp_path)


def turned(habits: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Another first one for each number, so that every habit meets every pass."""
    return habits[number % 3 :] + habits[: number % 3]


def summary(ran: Ran) -> str:
    """What was done in all, as the program says at its end."""
    return re.findall(r"^mucudnn: (\d+ of \d+ convolutions .*)$", ran.stderr, re.MULTILINE)[-1]


def points(ran: Ran) -> list[tuple[str, int]]:
    """The configurations that the log names, with their workspace, and how they are divided."""
    found = re.finditer(rf"({PART}(?: \+ {PART})*) with (\d+) bytes", ran.stderr)
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
        ran = [c for c in engine.enumerate(at, case.pass_) if c.status == "CUDNN_STATUS_SUCCESS"]
        options = [[(size, c.algorithm, size**2 / (i + 1), c.workspace)] for i, c in enumerate(ran)]
        rows.append((at, case.pass_, 1, options[0], options))
        size = case.problem.mini_batch if size < case.problem.mini_batch < 2 * size else 2 * size
    desk.journal.write_text(format_plan({**identity(engine), "threads": "1"}, rows))


def workspace_at(engine: Engine, case: Case, micro_batch: int) -> int:
    """The most that any algorithm needs there."""
    found = engine.enumerate(case.problem.replace(mini_batch=micro_batch), case.pass_)
    return max(c.workspace for c in found if c.status == "CUDNN_STATUS_SUCCESS")


@pytest.mark.parametrize(("number", "kind"), list(enumerate(PROBLEMS)))
def test_clients_follow_a_plan_for_every_kind_of_problem(
    number: int, kind: str, engine: Engine, desk: Desk
) -> None:
    for pass_, habit, beta in zip(PASSES, turned(HABITS, number), (0.5, 0.0, 1.0), strict=True):
        case = Case(problem(PROBLEMS[kind]), pass_, alpha=0.75, beta=beta, limit=ROOMY)
        rest = case.problem.mini_batch - 1
        plan, used = write_plan(engine, desk, case, (rest - rest // 2, rest // 2, 1))
        ran = desk.under(habit, case, "--plan", plan)
        assert summary(ran) == "1 of 1 convolutions divided"
        desk.check(case, ran, used)
        [(_, workspace)] = points(ran)
        assert habit == "fixed" or ran.choice[1] == workspace


@pytest.mark.parametrize(("number", "kind"), list(enumerate(PROBLEMS)))
def test_clients_are_divided_within_the_limit_by_what_was_measured(
    number: int, kind: str, engine: Engine, desk: Desk
) -> None:
    habits = turned(("caffe", "pytorch", "caffe"), number)
    for pass_, habit, beta in zip(PASSES, habits, (0.0, 1.0, 0.5), strict=True):
        case = Case(problem(PROBLEMS[kind]), pass_, alpha=0.75, beta=beta, limit=ROOMY)
        write_journal(engine, desk, case)
        limit = workspace_at(engine, case, 1) + engine.accumulator_size(case.problem, pass_, 7)
        ran = desk.under(habit, case, "--workspace", str(limit))
        assert (summary(ran), measurements(ran)) == ("1 of 1 convolutions divided", 0)
        chosen = [text for text, workspace in points(ran) if workspace == ran.choice[1]]
        assert ran.choice[1] <= limit
        desk.check(case, ran, set(re.findall(PART, " ".join(chosen))))


@pytest.mark.parametrize("kind", PROBLEMS)
def test_bias_and_activation_are_divided_with_the_convolution(kind: str, engine: Engine, desk: Desk) -> None:
    case = Case(problem(PROBLEMS[kind]), alpha=0.75, beta=0.5, limit=ROOMY)
    for sizes in ((1,) * case.problem.mini_batch, (case.problem.mini_batch - 1, 1)):
        plan, used = write_plan(engine, desk, case, sizes)
        ran = desk.under("bias_activation", case, "--plan", plan)
        assert summary(ran) == "1 of 1 convolutions divided"
        desk.check(case, ran, used, fused=True)


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("habit", ASKING)
def test_a_second_process_measures_nothing_and_does_the_same(habit: str, pass_: str, desk: Desk) -> None:
    case = Case(problem("mb6_ic4ih10_oc6_kh3_ph1"), pass_, beta=0.5, limit=ROOMY)
    first = desk.under(habit, case, "--workspace", "200KiB")
    journal = desk.journal.read_bytes()
    second = desk.under(habit, case, "--workspace", "200KiB")
    assert (measurements(first) > 0, measurements(second)) == (True, 0)
    assert points(first) == points(second)
    assert (second.choice[1], second.output) == (first.choice[1], first.output)
    assert desk.journal.read_bytes() == journal


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("own_limit", [0, 3 * 2**20, ROOMY])
def test_without_a_limit_no_program_allocates_more_than_it_does_alone(
    own_limit: int, pass_: str, engine: Engine, desk: Desk
) -> None:
    case = Case(problem("mb4_ic64ih28_oc64_kh3_ph1"), pass_, limit=own_limit)
    write_journal(engine, desk, case)
    alone, under = desk.alone("caffe", case), desk.under("caffe", case)
    assert under.choice[0] == alone.choice[0]
    assert under.choice[1] <= alone.choice[1]
    found = desk.under("pytorch", case)  # which algorithm it takes is a matter of time
    names = {number: name for name, number in ENUMERATORS[pass_].items()}
    own = {c.algorithm: c.workspace for c in engine.enumerate(case.problem, pass_)}
    assert found.choice[1] <= own[names[found.choice[0]]] <= own_limit


@pytest.mark.parametrize("pass_", PASSES)
def test_what_fails_alone_for_want_of_workspace_runs_when_it_is_divided(
    pass_: str, engine: Engine, desk: Desk
) -> None:
    name = {"forward": "GEMM", "backward_data": "ALGO_0", "backward_filter": "ALGO_0"}[pass_]
    case = Case(problem("mb8_ic16ih14_oc16_kh3_ph1"), pass_)
    case = replace(case, limit=workspace_at(engine, case, 1))
    kernels = {(str(case.problem), pass_): [[(1, name)] * 8]}
    plan = shim_cases.write_plan(engine, desk.folder / "network.plan", kernels)
    number = ENUMERATORS[pass_][name]
    assert "CUDNN_STATUS_BAD_PARAM" in desk.alone("fixed", case, algorithm=number).stderr
    desk.check(case, desk.under("fixed", case, "--plan", plan, algorithm=number), {name})


@pytest.mark.parametrize("pass_", PASSES)
def test_where_the_same_algorithm_runs_undivided_the_result_is_the_same_to_the_bit(
    pass_: str, engine: Engine, desk: Desk
) -> None:
    case = Case(problem(PROBLEMS["odd mini-batch"]), pass_, beta=0.5, limit=ROOMY)
    for name in algorithms(engine, case.problem, pass_):
        kernels = {(str(case.problem), pass_): [[(7, name)]]}
        plan = shim_cases.write_plan(engine, desk.folder / "network.plan", kernels)
        number = ENUMERATORS[pass_][name]
        alone = desk.alone("fixed", case, algorithm=number)
        assert desk.under("fixed", case, "--plan", plan, algorithm=number).output == alone.output
        assert desk.under("caffe", case, "--plan", plan).output == alone.output


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("habit", [*ASKING, "fixed"])
def test_the_record_holds_what_a_client_convolved(habit: str, pass_: str, desk: Desk) -> None:
    case = Case(problem(PROBLEMS["stride"]), pass_)
    file = desk.folder / "network.txt"
    for times in (1, 2):
        ran = desk.under(habit, case, "--output", file, command="record")
        assert ran.code == 0, ran.stderr
        [kernel] = read_network(str(file), Flags(), [pass_])
        assert (kernel.problem, kernel.count) == (case.problem, times)
