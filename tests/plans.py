"""Plans that run a convolution by named algorithms, whatever would be fastest."""

from collections.abc import Mapping

from mucudnn._native import Problem
from mucudnn.plans.plan import Plan, PlanKernel
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration, MicroConfiguration


def plan_by(algorithms: Mapping[str, str], problem: Problem, *sizes: int, workspace: int = 2**24) -> Plan:
    """Return a plan that divides each pass into these sizes and runs it by its algorithm."""
    kernels = []
    for pass_, algorithm in algorithms.items():
        chosen = Configuration(tuple(MicroConfiguration(size, algorithm, 1.0, workspace) for size in sizes))
        kernels.append(PlanKernel(Kernel(problem, pass_), 1, chosen, (chosen,)))
    return Plan({}, tuple(kernels))
