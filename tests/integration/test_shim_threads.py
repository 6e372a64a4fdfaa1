"""Unchanged programs are divided correctly in many threads, after forks, and with many handles.

`.ci/run` runs these again under the thread sanitizer.
"""

from __future__ import annotations

import re

import numpy as np
import pytest
from client_problems import PROBLEMS, problem
from clients import Case, Ran, decoded
from desk import Desk, measurements, summary, workspace_at, write_journal, write_plan
from reference import OUTPUT, PASSES
from shim_cases import ENUMERATORS, ROOMY

from mucudnn._native import Engine, parse_plan
from mucudnn.problems.kernels import Kernel

MODES = ("plan", "online")


def dividing_flags(mode: str, engine: Engine, desk: Desk, case: Case) -> tuple[list[str], set[str]]:
    """Return the flags of a run that divides the case, and the algorithms that the run may use."""
    if mode == "plan":
        plan, used = write_plan(engine, desk, case, (3, 3, 1))
        return ["--plan", str(plan)], used
    write_journal(engine, desk, case)
    names = {c.algorithm for c in engine.enumerate(Kernel(case.problem, case.pass_))}
    return ["--workspace", str(workspace_at(engine, case, 1))], names & ENUMERATORS[case.pass_].keys()


def check_threads(desk: Desk, case: Case, ran: Ran, used: set[str]) -> None:
    """Check the output of thread i: (i + 1) times that of the first thread, by the same algorithms."""
    size = len(ran.output) // 8
    outputs = [ran.output[start : start + size] for start in range(0, 8 * size, size)]
    desk.check(case, outputs[0], used)
    shape = case.shapes()[OUTPUT[case.pass_]]
    first = decoded(outputs[0], shape, case.problem)
    for times, output in enumerate(outputs, start=1):
        difference = decoded(output, shape, case.problem) - times * first
        assert np.linalg.norm(difference) <= times * case.tolerance()


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("mode", MODES)
def test_eight_threads_with_handles_of_their_own_share_what_is_decided(
    mode: str, pass_: str, engine: Engine, desk: Desk
) -> None:
    case = Case(problem(PROBLEMS["odd mini-batch"]), pass_, limit=ROOMY)
    flags, used = dividing_flags(mode, engine, desk, case)
    ran = desk.under("threads", case, *flags)
    assert summary(ran) == "80 of 80 convolutions divided"
    check_threads(desk, case, ran, used)


@pytest.mark.parametrize("pass_", PASSES)
def test_eight_threads_that_first_ask_at_once_measure_each_algorithm_once(
    pass_: str, engine: Engine, desk: Desk
) -> None:
    case = Case(problem(PROBLEMS["odd mini-batch"]), pass_, limit=ROOMY)
    ran = desk.under("threads", case, "--workspace", "none")
    _, kernels = parse_plan(desk.journal.read_text())
    assert measurements(ran) == sum(len(kernel[4]) for kernel in kernels) > 0
    check_threads(desk, case, ran, set(ENUMERATORS[pass_]))


@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("mode", MODES)
def test_a_child_forked_after_the_first_convolution_divides_its_own(
    mode: str, pass_: str, engine: Engine, desk: Desk
) -> None:
    case = Case(problem(PROBLEMS["odd mini-batch"]), pass_, beta=0.5, limit=ROOMY)
    flags, used = dividing_flags(mode, engine, desk, case)
    ran = desk.under("forks", case, *flags)
    desk.check(case, ran.output, used)
    assert ran.files[".child"] == ran.output
    assert re.findall(r"\d+ of \d+ convolutions.*", ran.stderr) == [
        "1 of 1 convolutions divided",  # the line of the child, which ends first
        "2 of 2 convolutions divided",
    ]


@pytest.mark.parametrize("mode", MODES)
def test_handles_that_come_and_go_between_threads_leave_no_memory_behind(
    mode: str, engine: Engine, desk: Desk
) -> None:
    case = Case(problem(PROBLEMS["odd mini-batch"]), limit=ROOMY)
    flags, used = dividing_flags(mode, engine, desk, case)
    ran = desk.under("handles", case, *flags)
    desk.check(case, ran.output, used)
    assert summary(ran) == "2200 of 2200 convolutions divided"
    found = re.search(r"grew by (-?\d+) bytes", ran.stdout)
    assert found
    assert int(found[1]) < 2**17  # less than 64 bytes a handle
