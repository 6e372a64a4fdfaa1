"""The step from measurements to choices. It needs no engine and no cache."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from mucudnn._native import most_slices, most_slices_in_place
from mucudnn.costs.records import CANNOT_ACCUMULATE, Comparison, Measurement
from mucudnn.costs.table import CostTable
from mucudnn.errors import NothingFitsError
from mucudnn.listener import Listener
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import usable_sizes
from mucudnn.sizes import format_size
from mucudnn.solver import Configuration, Infeasible, desirable_set, solve_division

_PARTS = 5  # limits of a race under a total: the total, a quarter of it, and so on


@dataclass(frozen=True)
class Limits:
    """The workspace allowed, in bytes; None for no limit.

    With `workspace` each kernel has that limit (workspace reuse, WR). With `total` all kernels share it
    (workspace division, WD); `exact` then asks for the optimum, however long the solver takes.
    """

    workspace: int | None = None
    total: int | None = None
    exact: bool = False

    @property
    def mode(self) -> str:
        """The mode: `wd` with a total, else `wr`."""
        return "wr" if self.total is None else "wd"

    @property
    def raced(self) -> tuple[int | None, ...]:
        """The limits of one kernel that a race looks for choices within, ascending.

        A part of the total may fall to any kernel, so a race under a total has several limits.
        """
        if self.total is None:
            return (self.workspace,)
        return tuple(sorted({0, *(self.total // 4**part for part in range(_PARTS))}))


@dataclass(frozen=True)
class Decision:
    """A kernel's best undivided algorithm and its best configuration, both within the same workspace.

    `desirable` is the desirable set: the kernel's Pareto-optimal configurations, workspace ascending. Where
    the solver's choice is not to divide, `divided` equals `undivided`. `undivided` is None where no algorithm
    can run the whole mini-batch within the workspace.
    """

    kernel: Kernel
    desirable: tuple[Configuration, ...]
    undivided: Configuration | None
    divided: Configuration
    comparison: Comparison | None = None

    @property
    def dropped(self) -> bool:
        """True if the division, run whole, was slower than the undivided algorithm."""
        speedup = self.comparison.speedup if self.comparison else None
        return self.divided != self.undivided and speedup is not None and speedup < 1

    @property
    def chosen(self) -> Configuration:
        """The configuration to run."""
        return self.undivided if self.dropped and self.undivided is not None else self.divided


def decide(
    costs: CostTable,
    policy: str,
    limits: Limits,
    listener: Listener | None = None,
) -> list[Decision]:
    """Choose a configuration for every kernel of the table from its costs at the policy's sizes.

    The listener gets a message if the solver runs out of time. Raises NothingFitsError if no configuration
    of a kernel fits, with the kernel and the least workspace; MucudnnError if a size was never measured.
    """
    wanted = {kernel: costs.at_sizes(kernel, usable_sizes(policy, kernel)) for kernel in costs.measurements}
    desirable = {kernel: desirable_configurations(rows, kernel) for kernel, rows in wanted.items()}
    for kernel, configurations in desirable.items():
        if not configurations:
            raise NothingFitsError(f"{kernel}: no algorithm runs at any of the measured micro-batch sizes")
    chosen = (
        _divide_total(desirable, limits, listener)
        if limits.mode == "wd"
        else _choose_fastest(desirable, limits.workspace)
    )
    return [
        Decision(
            kernel,
            tuple(desirable[kernel]),
            _find_best_undivided(
                kernel, wanted[kernel], choice.workspace if limits.mode == "wd" else limits.workspace
            ),
            choice,
        )
        for kernel, choice in chosen.items()
    ]


def desirable_configurations(measured: Sequence[Measurement], kernel: Kernel) -> list[Configuration]:
    """Return the desirable set of a kernel: its Pareto-optimal configurations, workspace ascending.

    A filter gradient in 16 bits sums only a few slices in place. A division in more slices needs an
    accumulator, whose bytes count as workspace of its parts. A kernel whose slices cannot be summed at all
    has undivided configurations alone, whatever was measured.
    """
    mini_batch = kernel.problem.mini_batch
    parts = [(part, m.accumulator) for m in measured if (part := m.part()) is not None]
    if most_slices(kernel) == 1:
        parts = [(part, 0) for part, _ in parts if part.micro_batch == mini_batch]
    if not any(accumulator for _, accumulator in parts):
        return desirable_set([part for part, _ in parts], mini_batch)
    most = most_slices_in_place(kernel)
    # Slices of these sizes are so few that they need no accumulator.
    in_place = [part for part, _ in parts if part.micro_batch * most >= mini_batch]
    accumulated = [
        part if part.micro_batch == mini_batch else replace(part, workspace=part.workspace + accumulator)
        for part, accumulator in parts
        if accumulator != CANNOT_ACCUMULATE
    ]
    both = chain(desirable_set(in_place, mini_batch), desirable_set(accumulated, mini_batch))
    front: list[Configuration] = []
    for configuration in sorted(both, key=lambda c: (c.workspace, c.time_ms, len(c.parts))):
        if not front or configuration.time_ms < front[-1].time_ms:
            front.append(configuration)
    return front


def _choose_fastest(
    desirable: Mapping[Kernel, Sequence[Configuration]], limit: int | None
) -> dict[Kernel, Configuration]:
    """Choose by workspace reuse (WR): the fastest configuration within each kernel's limit.

    Time descends along a desirable set, so that is the last configuration that fits.
    """
    chosen = {}
    for kernel, configurations in desirable.items():
        fitting = [c for c in configurations if limit is None or c.workspace <= limit]
        if not fitting:
            raise NothingFitsError(
                f"{kernel}: nothing fits {format_size(limit)} of workspace, "
                f"the least that works is {configurations[0].workspace} bytes"
            )
        chosen[kernel] = fitting[-1]
    return chosen


def _divide_total(
    desirable: Mapping[Kernel, Sequence[Configuration]], limits: Limits, listener: Listener | None
) -> dict[Kernel, Configuration]:
    """Choose by workspace division (WD): the configurations that are fastest together within the total."""
    assert limits.total is not None
    counts = {kernel: kernel.count for kernel in desirable}
    try:
        division = solve_division(dict(desirable), limits.total, counts=counts, exact=limits.exact)
    except Infeasible:
        least = {kernel: kernel.count * c[0].workspace for kernel, c in desirable.items()}
        most = max(least, key=least.__getitem__)
        raise NothingFitsError(
            f"nothing fits {format_size(limits.total)} of workspace in total, the least that works is "
            f"{sum(least.values())} bytes, {least[most]} of them for {most}"
        ) from None
    if not division.reached and listener is not None:
        listener.message(
            f"The solver was stopped after {division.seconds:.0f} s at a gap of {division.gap:.2%}: "
            "another division of the total saves at most that much of the time"
        )
    return division.choice


def _find_best_undivided(
    kernel: Kernel, measured: Sequence[Measurement], limit: int | None
) -> Configuration | None:
    whole = [part for m in measured if m.micro_batch == kernel.problem.mini_batch and (part := m.part())]
    fitting = [part for part in whole if limit is None or part.workspace <= limit]
    return Configuration((min(fitting, key=lambda p: (p.time_ms, p.workspace)),)) if fitting else None
