"""Workspace division as an integer linear program, through PuLP with HiGHS."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .choice import Answer, Options

# HiGHS accepts a constraint violated by 1e-6. In these units, that is 1e-12 of the capacity.
CAPACITY_UNITS = 1e6


def solve(options: Sequence[Options], capacity: int, gap: float, time_limit: float) -> Answer:
    """Choose one option of each kernel.

    The sum of the workspaces may exceed the capacity, because HiGHS computes in floating point: the caller
    must check it.
    """
    import pulp  # imported late, because it loads slowly and only workspace division needs it

    # HiGHS's tolerances are absolute, so times count in thousandths of the slowest answer.
    milliseconds = sum(float(kernel.time[0]) for kernel in options) / 1e3
    units = CAPACITY_UNITS / max(capacity, 1)
    problem = pulp.LpProblem("workspace_division", pulp.LpMinimize)
    chosen: list[list[pulp.LpVariable]] = []
    time: list[tuple[pulp.LpVariable, float]] = []
    workspace: list[tuple[pulp.LpVariable, float]] = []
    for k, kernel in enumerate(options):
        row = [problem.add_variable(f"x{k}_{i}", cat=pulp.LpBinary) for i in range(len(kernel.time))]
        time += zip(row, (kernel.time / milliseconds).tolist(), strict=True)
        workspace += zip(row, (kernel.workspace * units).tolist(), strict=True)
        chosen.append(row)
    problem += pulp.LpAffineExpression(time)
    problem += pulp.LpAffineExpression(workspace) <= capacity * units
    for row in chosen:
        problem += pulp.LpAffineExpression((x, 1) for x in row) == 1

    problem.solve(
        # One thread, so that equal inputs get equal answers.
        pulp.HiGHS(msg=False, threads=1, gapRel=gap, gapAbs=0, timeLimit=time_limit)
    )
    # PuLP's `status` is Optimal even at the time limit; `sol_status` tells if the answer is an optimum.
    bound = float(problem.solverModel.getInfo().mip_dual_bound) * milliseconds
    if problem.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return Answer(None, bound)
    return Answer([int(np.argmax([x.value() for x in row])) for row in chosen], bound)
