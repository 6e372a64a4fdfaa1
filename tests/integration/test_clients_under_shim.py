"""Programs that were never changed divide their convolutions under `mucudnn run`, and compute the same."""

import re

import pytest
from client_problems import PROBLEMS, problem
from clients import HABITS, Case
from desk import PART, Desk, measurements, points, summary, workspace_at, write_journal, write_plan
from reference import PASSES
from shim_cases import ROOMY

from mucudnn._native import Engine, most_slices
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import usable_sizes


def rotated(habits: tuple[str, ...], number: int) -> tuple[str, ...]:
    """Rotate the habits by `number`, so that every habit meets every pass."""
    return habits[number % 3 :] + habits[: number % 3]


@pytest.mark.parametrize(("number", "kind"), list(enumerate(PROBLEMS)))
def test_clients_follow_a_plan_for_every_kind_of_problem(
    number: int, kind: str, engine: Engine, desk: Desk
) -> None:
    for pass_, habit, beta in zip(PASSES, rotated(HABITS, number), (0.5, 0.0, 1.0), strict=True):
        case = Case(problem(PROBLEMS[kind]), pass_, alpha=0.75, beta=beta, limit=ROOMY)
        rest = case.problem.mini_batch - 1
        plan, used = write_plan(engine, desk, case, (rest - rest // 2, rest // 2, 1))
        ran = desk.under(habit, case, "--plan", plan)
        desk.check(case, ran.output, used)
        if most_slices(Kernel(case.problem, pass_)) == 1:
            assert summary(ran).startswith("0 of 1 convolutions divided")
            continue
        assert summary(ran) == "1 of 1 convolutions divided"
        [(_, workspace)] = points(ran)
        assert habit == "fixed" or ran.choice[1] == workspace


@pytest.mark.parametrize(("number", "kind"), list(enumerate(PROBLEMS)))
def test_clients_are_divided_within_the_limit_by_what_was_measured(
    number: int, kind: str, engine: Engine, desk: Desk
) -> None:
    habits = rotated(("caffe", "pytorch", "caffe"), number)
    for pass_, habit, beta in zip(PASSES, habits, (0.0, 1.0, 0.5), strict=True):
        case = Case(problem(PROBLEMS[kind]), pass_, alpha=0.75, beta=beta, limit=ROOMY)
        write_journal(engine, desk, case)
        least, *others = usable_sizes("power_of_two", Kernel(case.problem, pass_))
        divides = bool(others) and case.problem.mini_batch % least == 0
        limit = workspace_at(engine, case, least if divides else 1)
        ran = desk.under(habit, case, "--workspace", str(limit))
        assert summary(ran).startswith(f"{int(divides)} of 1 convolutions divided")
        assert measurements(ran) == 0
        assert ran.choice[1] <= limit
        # The drop-in takes the largest configuration that fits. The program may hold more workspace, for
        # its own algorithm.
        chosen = max((p for p in points(ran) if p[1] <= ran.choice[1]), key=lambda point: point[1])[0]
        desk.check(case, ran.output, set(re.findall(PART, chosen)))


@pytest.mark.parametrize("pass_", PASSES)
def test_where_a_plan_has_shares_beside_its_choice_the_choice_is_followed(
    pass_: str, engine: Engine, desk: Desk
) -> None:
    case = Case(problem(PROBLEMS["odd mini-batch"]), pass_, limit=ROOMY)
    plan, used = write_plan(engine, desk, case, (3, 3, 1))
    lines = plan.read_text().splitlines(keepends=True)
    place = next(number for number, line in enumerate(lines) if line.startswith("choose "))
    lines.insert(place + 1, "share 1 1*7:NO_SUCH:0.5:0\n")
    plan.write_text("".join(lines))
    ran = desk.under("caffe", case, "--plan", plan)
    assert summary(ran) == "1 of 1 convolutions divided"
    desk.check(case, ran.output, used)
