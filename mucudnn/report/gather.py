"""All that the page says, as numbers and sentences; no plots yet."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from mucudnn.costs.records import Measurement
from mucudnn.plans.decide import Decision
from mucudnn.plans.optimizer import Result
from mucudnn.plans.result import Times, measured, predicted, total_workspace
from mucudnn.plans.text import short_names
from mucudnn.problems.kernels import PASSES, Kernel
from mucudnn.report.advice import advise
from mucudnn.report.curves import Curve, divided_curve, even_curve
from mucudnn.solver import Configuration
from mucudnn.solver.configuration import pareto_front


@dataclass(frozen=True)
class KernelReport:
    """A kernel's decision, and the Pareto-optimal of its undivided algorithms, workspace ascending."""

    name: str
    decision: Decision
    undivided: tuple[Configuration, ...]

    @property
    def kernel(self) -> Kernel:
        """What was decided on."""
        return self.decision.kernel

    @property
    def title(self) -> str:
        """The name, the pass, and how often the kernel occurs where that is more than once."""
        count = f" ×{self.kernel.count}" if self.kernel.count > 1 else ""
        return f"{self.name} {self.kernel.pass_}{count}"

    @property
    def predicted(self) -> Times:
        """Sums of what was measured of the parts."""
        return predicted(self.decision)

    @property
    def measured(self) -> Times | None:
        """Of whole runs; None where there were none."""
        return measured(self.decision)


@dataclass(frozen=True)
class Report:
    """A network's decisions and what they cost and gain.

    `even`, `divided` and `undivided` are curves of the network's time against its total workspace: the
    total split evenly (WR), divided among the kernels (WD), and split evenly but without division of
    mini-batches. `present` is the total that the limits amount to, None without limit.
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
        """The kernels of each pass that there is."""
        passes = {name: [k for k in self.kernels if k.kernel.pass_ == name] for name in PASSES}
        return {name: kernels for name, kernels in passes.items() if kernels}

    @property
    def workspace(self) -> int:
        """Bytes that the choices use: the sum (WD), or the most of any kernel (WR)."""
        return total_workspace(self.result)

    def held(self, kernel: KernelReport) -> int:
        """Bytes of the kernel's choice, and of all identical ones where each has its own (WD)."""
        copies = kernel.kernel.count if self.result.limits.mode == "wd" else 1
        return copies * kernel.decision.chosen.workspace


def gather(network: str, result: Result, measurements: Mapping[Kernel, Sequence[Measurement]]) -> Report:
    """Of a result and of all measurements that it was decided from."""
    names = short_names([decision.kernel.label for decision in result.decisions])
    kernels = tuple(
        KernelReport(name, decision, _undivided(decision.kernel, measurements[decision.kernel]))
        for name, decision in zip(names, result.decisions, strict=True)
    )
    desirable = {k.kernel: k.decision.desirable for k in kernels}
    even = even_curve(desirable)
    limits = result.limits
    copies = sum(k.kernel.count for k in kernels)
    present = copies * limits.workspace if limits.workspace is not None else limits.total
    divided = divided_curve(desirable, [] if present is None else [present])
    return Report(
        network=network,
        result=result,
        kernels=kernels,
        even=even,
        divided=divided,
        undivided=even_curve({k.kernel: k.undivided for k in kernels}),
        present=present,
        advice=tuple(advise(limits, copies, even, divided)),
    )


def _undivided(kernel: Kernel, measurements: Sequence[Measurement]) -> tuple[Configuration, ...]:
    whole = [
        Configuration((part,))
        for m in measurements
        if m.micro_batch == kernel.problem.mini_batch and (part := m.part()) is not None
    ]
    return tuple(pareto_front(sorted(whole, key=lambda c: (c.workspace, c.time_ms))))
