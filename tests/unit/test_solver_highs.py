"""HiGHS as the solver uses it."""

import sys

from programs import run

PROGRAM = """
import pulp
from mucudnn.solver.highs import make_solver
problem = pulp.LpProblem("few_coins", pulp.LpMinimize)
fives, threes = (problem.add_variable(name, 0, cat=pulp.LpInteger) for name in ("fives", "threes"))
problem += fives + threes
problem += 5 * fives + 3 * threes == 29
problem.solve(make_solver({nodes}, mip_rel_gap=0, mip_abs_gap=0, time_limit=60.0, presolve="off"))
assert (fives.value(), threes.value()) == (4, 3)
"""


def test_it_prints_nothing() -> None:
    for nodes in (None, 1000):
        ended = run(sys.executable, "-c", PROGRAM.format(nodes=nodes))
        assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
