"""Unchanged programs are divided correctly in many threads, after forks, and with many handles.

`.ci/run` runs these again under the thread sanitizer.

    TEST_SEED=7     begin with random case 7 instead of 1
    TEST_CASES=500  run that many random cases
"""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from random import Random

import numpy as np
import pytest
from client_problems import PROBLEMS, problem
from clients import Case, Ran, decoded
from desk import Desk, dividing_flags, measurements, summary
from random_cases import cases
from reference import OUTPUT, PASSES
from shim_cases import ENUMERATORS, ROOMY

from mucudnn._native import Engine, parse_journal

MODES = ("plan", "online")


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
    documents = parse_journal(desk.journal.read_text())
    assert measurements(ran) == sum(len(measured) for _, measured, _ in documents) > 0
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


def any_case(random: Random) -> Case:
    """Return a case that every mode divides: some slices of a filter gradient in 16 bits are refused."""
    pass_, alpha = random.choice(PASSES), random.choice((1.0, -0.5, 3.0))
    texts = [text for text in PROBLEMS.values() if pass_ != "backward_filter" or "f16" not in text]
    return Case(problem(random.choice(texts)), pass_, alpha=alpha, limit=ROOMY)


def any_sizes(random: Random, mini_batch: int) -> tuple[int, ...]:
    """Return two or more micro-batch sizes, the largest first."""
    ends = sorted(random.sample(range(1, mini_batch), random.randint(1, min(3, mini_batch - 1))))
    return tuple(sorted((b - a for a, b in pairwise([0, *ends, mini_batch])), reverse=True))


@pytest.mark.parametrize("seed", cases(4, first=1))
def test_any_case_is_divided_in_eight_threads_and_in_a_forked_child(
    seed: int, engine: Engine, desk: Desk
) -> None:
    random = Random(f"threads {seed}")
    case, mode = any_case(random), random.choice(MODES)
    flags, used = dividing_flags(mode, engine, desk, case, any_sizes(random, case.problem.mini_batch))
    if random.random() < 0.5:
        ran = desk.under("threads", case, *flags)
        assert summary(ran) == "80 of 80 convolutions divided", case
        check_threads(desk, case, ran, used)
    else:
        case = replace(case, beta=random.choice((0.0, 1.0, 0.5)))
        ran = desk.under("forks", case, *flags)
        desk.check(case, ran.output, used)
        assert ran.files[".child"] == ran.output, case
        assert summary(ran) == "2 of 2 convolutions divided", case


@pytest.mark.parametrize("mode", MODES)
def test_handles_that_come_and_go_between_threads_leave_no_memory_behind(
    mode: str, engine: Engine, desk: Desk
) -> None:
    case = Case(problem(PROBLEMS["odd mini-batch"]), limit=ROOMY)
    flags, used = dividing_flags(mode, engine, desk, case)
    ran = desk.under("handles", case, *flags)
    desk.check(case, ran.output, used)
    assert summary(ran) == "2200 of 2200 convolutions divided"
    match = re.search(r"grew by (-?\d+) bytes", ran.stdout)
    assert match
    assert int(match[1]) < 2**17  # less than 64 bytes a handle
