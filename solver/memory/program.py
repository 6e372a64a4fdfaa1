"""A linear program in PuLP, built from terms."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from itertools import count
from typing import Any, TypeAlias

from ..forks import no_fork

Terms: TypeAlias = list[tuple[Any, float]]
"""Variables and their factors."""


class Program:
    """A program that minimises, whose variables are 0 or above.

    Attributes:
        pulp: the module, which loads slowly and only few callers need.
        problem: PuLP's own object.
    """

    def __init__(self, name: str) -> None:
        with no_fork:
            import pulp

        self.pulp, self.problem = pulp, pulp.LpProblem(name, pulp.LpMinimize)
        self._names = map("v{}".format, count())
        self._senses: Mapping[str, int] = {
            "<=": pulp.LpConstraintLE, "==": pulp.LpConstraintEQ, ">=": pulp.LpConstraintGE,
        }  # fmt: skip

    def number(self, least: float = 0.0, most: float | None = None) -> Any:
        """Return a new variable between two bounds."""
        return self.problem.add_variable(next(self._names), lowBound=least, upBound=most)

    def binary(self) -> Any:
        """Return a new variable that is 0 or 1."""
        return self.problem.add_variable(next(self._names), cat=self.pulp.LpBinary)

    def add(self, terms: Iterable[tuple[Any, float]], relation: str, value: float) -> None:
        """Add a constraint. A variable may come several times."""
        merged: dict[Any, float] = {}
        for variable, factor in terms:
            merged[variable] = merged.get(variable, 0.0) + factor
        expression = self.pulp.LpAffineExpression(merged)
        self.problem += self.pulp.LpConstraint(expression, self._senses[relation], rhs=value)

    def minimise(self, terms: Iterable[tuple[Any, float]], solver: Any) -> None:
        """Set the objective and solve."""
        self.problem.setObjective(self.pulp.LpAffineExpression(list(terms)))
        self.problem.solve(solver)

    @property
    def is_solved(self) -> bool:
        """True if the solver found an answer."""
        pulp, info = self.pulp, self.problem.solverModel.getInfo()
        is_solved = self.problem.sol_status in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible)
        # PuLP calls an interrupted solver's answer feasible even if there is none.
        return is_solved and math.isfinite(info.objective_function_value)


class Amount:
    """A sum of variables that changes from step to step, as a variable for each step at which it does.

    It keeps the rows of a program short where sums over all variables would be long.
    """

    def __init__(self, program: Program) -> None:
        self._program = program
        self._variable: Any = None
        self._changes: Terms = []

    def grow(self, variable: Any, factor: float) -> None:
        """Add a variable times a factor."""
        self._changes.append((variable, factor))

    def now(self) -> Terms:
        """Return the terms of the sum."""
        if self._changes:
            after = self._program.number()
            before = [] if self._variable is None else [(self._variable, -1.0)]
            self._program.add([(after, 1), *before, *minus(self._changes)], "==", 0)
            self._variable, self._changes = after, []
        return [] if self._variable is None else [(self._variable, 1.0)]


def minus(terms: Terms) -> Terms:
    """Return the terms with opposite factors."""
    return [(variable, -factor) for variable, factor in terms]
