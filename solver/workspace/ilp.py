"""Workspace division as an integer linear program, through PuLP with HiGHS."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..forks import no_fork
from ..highs import make_solver
from .choice import Answer, Options

# HiGHS accepts a constraint violated by 1e-6. In these units, that is 1e-12 of the capacity.
CAPACITY_UNITS = 1e6


def solve(options: Sequence[Options], capacity: int, gap: float, time_limit: float) -> Answer:
    """Choose one option of each kernel.

    The caller must check the sum of the workspaces, which may exceed the capacity because HiGHS computes in
    floating point.
    """
    with no_fork:
        import pulp  # imported late, because it loads slowly and only workspace division needs it

    # HiGHS's tolerances are absolute, so times count in thousandths of the slowest answer.
    milliseconds = sum(float(kernel.time[0]) for kernel in options) / 1e3
    units = CAPACITY_UNITS / max(capacity, 1)
    problem = pulp.LpProblem("workspace_division", pulp.LpMinimize)
    # Kernels with equal options share a row of variables that count them. With a row for each kernel, HiGHS
    # would try the same choices in every order.
    alike: dict[tuple[bytes, bytes], list[int]] = {}
    for k, kernel in enumerate(options):
        alike.setdefault((kernel.time.tobytes(), kernel.workspace.tobytes()), []).append(k)
    numbers: list[list[pulp.LpVariable]] = []
    time: list[tuple[pulp.LpVariable, float]] = []
    workspace: list[tuple[pulp.LpVariable, float]] = []
    for first, *others in alike.values():
        kernel, most = options[first], 1 + len(others)
        row = [
            problem.add_variable(f"x{first}_{i}", 0, most, pulp.LpInteger) for i in range(len(kernel.time))
        ]
        time += zip(row, (kernel.time / milliseconds).tolist(), strict=True)
        workspace += zip(row, (kernel.workspace * units).tolist(), strict=True)
        problem += pulp.LpAffineExpression((x, 1) for x in row) == most
        numbers.append(row)
    problem += pulp.LpAffineExpression(time)
    problem += pulp.LpAffineExpression(workspace) <= capacity * units

    # HiGHS's presolve lost the optimum if some workspaces were a billion times as large as others, and saved
    # no time.
    problem.solve(make_solver(mip_rel_gap=gap, mip_abs_gap=0, time_limit=time_limit, presolve="off"))
    # PuLP's `status` is Optimal even at the time limit; `sol_status` says whether the answer is an optimum.
    bound = float(problem.solverModel.getInfo().mip_dual_bound) * milliseconds
    if problem.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return Answer(None, bound)
    choice = [0] * len(options)
    for row, kernels in zip(numbers, alike.values(), strict=True):
        taken = np.repeat(np.arange(len(row)), [round(x.value()) for x in row])
        if len(taken) != len(kernels):  # beyond HiGHS's tolerance for whole numbers
            return Answer(None, bound)
        for k, option in zip(kernels, taken.tolist(), strict=True):
            choice[k] = option
    return Answer(choice, bound)
