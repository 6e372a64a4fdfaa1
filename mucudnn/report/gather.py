"""The content of the page as numbers and sentences, without plots."""

from dataclasses import dataclass

from mucudnn.costs.table import CostTable
from mucudnn.plans.decide import Decision, undivided_configurations
from mucudnn.plans.result import Result, total_workspace
from mucudnn.problems.kernels import PASSES, Kernel
from mucudnn.report.advice import advise
from mucudnn.report.curves import Curve, divided_curve, even_curve
from mucudnn.solver import Configuration, MicroConfiguration
from mucudnn.solver.workspace.configuration import pareto_front

_OF_ONE_LIMIT = (
    "A batch-invariant choice holds for one limit, and another limit may lead to another algorithm: compare "
    "reports for several limits."
)


@dataclass(frozen=True)
class KernelReport:
    """A kernel's decision, and its Pareto-optimal undivided algorithms, workspace ascending."""

    decision: Decision
    undivided: tuple[Configuration, ...]

    @property
    def kernel(self) -> Kernel:
        """The kernel that the decision is about."""
        return self.decision.kernel


@dataclass(frozen=True)
class Report:
    """A network's decisions, with its curves of time against workspace.

    `even`, `divided` and `undivided` are curves of the network's time against its total workspace: the total
    split evenly (WR), divided among the kernels (WD), and split as in the result's mode, but without division
    of mini-batches. `present` is the sum of the limits in bytes, None without a limit. `advice` is sentences.
    """

    network: str
    result: Result
    kernels: tuple[KernelReport, ...]
    even: Curve
    divided: Curve
    undivided: Curve
    present: int | None
    advice: tuple[str, ...]

    @property
    def by_pass(self) -> dict[str, list[KernelReport]]:
        """The kernels of each pass that has any."""
        passes = {name: [k for k in self.kernels if k.kernel.pass_ == name] for name in PASSES}
        return {name: kernels for name, kernels in passes.items() if kernels}

    @property
    def undivided_label(self) -> str:
        """The name of the undivided curve."""
        return f"undivided, split {'evenly' if self.result.limits.total is None else 'by need'}"

    @property
    def workspace(self) -> int:
        """The bytes that the choices use: the sum over all kernels (WD), or the largest (WR)."""
        return total_workspace(self.result)


def gather(network: str, result: Result, costs: CostTable) -> Report:
    """Return the report of a result whose decisions were made from `costs`."""
    measured = (costs.measurements[decision.kernel] for decision in result.decisions)
    kernels = tuple(
        KernelReport(decision, tuple(undivided_configurations(rows, decision.kernel)))
        for decision, rows in zip(result.decisions, measured, strict=True)
    )
    fronts = {k.kernel: _find_front(k.decision) for k in kernels}
    even = even_curve(fronts)
    limits = result.limits
    copies = sum(k.kernel.count for k in kernels)
    present = copies * limits.workspace if limits.workspace is not None else limits.total
    totals = [] if present is None else [present]
    divided = divided_curve(fronts, totals)
    whole = {k.kernel: k.undivided for k in kernels}
    return Report(
        network=network,
        result=result,
        kernels=kernels,
        even=even,
        divided=divided,
        undivided=even_curve(whole) if limits.total is None else divided_curve(whole, totals),
        present=present,
        advice=(_OF_ONE_LIMIT,)
        if result.promise.batch_invariant
        else tuple(advise(limits, copies, even, divided)),
    )


def _find_front(decision: Decision) -> list[Configuration]:
    """Return the desirable set, with groups of channels instead of the configurations that they outdo.

    Curves need only costs, so one configuration with the groups' costs represents them.
    """
    front, groups = list(decision.desirable), decision.groups
    if groups is not None:
        part = MicroConfiguration(decision.kernel.mini_batch, "groups", groups.time_ms, groups.workspace)
        front.append(Configuration((part,)))
    return pareto_front(sorted(front, key=lambda c: (c.workspace, c.time_ms)))
