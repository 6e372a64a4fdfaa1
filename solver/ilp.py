"""Workspace division as an integer linear program, through PuLP with HiGHS."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .choice import Answer, Options

# In millionths of the capacity HiGHS's absolute tolerance on the constraint, 1e-6, is 1e-12 of it.
CAPACITY_UNITS = 1e6


def solve(options: Sequence[Options], capacity: int, gap: float, time_limit: float) -> Answer:
    """Choose one option of each kernel. HiGHS computes in floating point: the sum may exceed the capacity."""
    import pulp  # here, since it loads more slowly than all else and only a total needs it

    # HiGHS's tolerances are absolute: times in thousandths of the slowest answer.
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
        pulp.HiGHS(msg=False, threads=1, gapRel=gap, gapAbs=0, timeLimit=time_limit)  # one thread: repeatable
    )
    # PuLP's status says Optimal at the time limit too; its solution status does not.
    bound = float(problem.solverModel.getInfo().mip_dual_bound) * milliseconds
    if problem.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return Answer(None, bound)
    return Answer([int(np.argmax([x.value() for x in row])) for row in chosen], bound)
