"""From measurements to choices: no engine, no cache, only numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from mucudnn._native import most_slices, most_slices_in_place
from mucudnn.errors import MucudnnError, NothingFitsError
from mucudnn.kernels import Kernel
from mucudnn.listener import Listener
from mucudnn.policies import usable_sizes
from mucudnn.records import CANNOT_ACCUMULATE, Comparison, Measurement
from mucudnn.sizes import format_size
from mucudnn.solver import Configuration, Infeasible, desirable_set, solve_division


@dataclass(frozen=True)
class Limits:
    """The memory allowed: WD divides a total among the kernels, WR keeps each below `workspace`."""

    workspace: int | None = None
    total: int | None = None
    exact: bool = False

    @property
    def mode(self) -> str:
        """`wr` or `wd`."""
        return "wr" if self.total is None else "wd"


@dataclass(frozen=True)
class Decision:
    """A kernel's best undivided algorithm and the division that was chosen, both within the same bytes."""

    kernel: Kernel
    desirable: tuple[Configuration, ...]
    undivided: Configuration | None
    divided: Configuration
    comparison: Comparison | None = None

    @property
    def dropped(self) -> bool:
        """Whether the division, run whole, was slower than running undivided."""
        speedup = self.comparison.speedup if self.comparison else None
        return self.divided != self.undivided and speedup is not None and speedup < 1

    @property
    def chosen(self) -> Configuration:
        """What to run."""
        return self.undivided if self.dropped and self.undivided is not None else self.divided


def decide(
    measured: Mapping[Kernel, Sequence[Measurement]],
    policy: str,
    limits: Limits,
    listener: Listener | None = None,
) -> list[Decision]:
    """Choose for every kernel; the listener is told where a solver ran out of time.

    Raises NothingFitsError naming the kernel and the least workspace; MucudnnError where a size of the
    policy was never measured.
    """
    wanted = {kernel: _of_policy(kernel, rows, policy) for kernel, rows in measured.items()}
    desirable = {kernel: desirable_configurations(rows, kernel) for kernel, rows in wanted.items()}
    for kernel, configurations in desirable.items():
        if not configurations:
            raise NothingFitsError(f"{kernel}: no algorithm runs at any size that was measured")
    chosen = (
        _divide(desirable, limits, listener) if limits.mode == "wd" else _reuse(desirable, limits.workspace)
    )
    return [
        Decision(
            kernel,
            tuple(desirable[kernel]),
            _best_undivided(
                kernel, wanted[kernel], choice.workspace if limits.mode == "wd" else limits.workspace
            ),
            choice,
        )
        for kernel, choice in chosen.items()
    ]


def desirable_configurations(measured: Sequence[Measurement], kernel: Kernel) -> list[Configuration]:
    """Return the Pareto-optimal configurations, workspace ascending.

    Where slices cannot all be summed in place, those of a division count the accumulator with their
    workspace, where there is one; slices that are large enough are too few to need one. A kernel that is not
    divided has none but the whole mini-batch, whatever was measured.
    """
    mini_batch = kernel.problem.mini_batch
    parts = [(part, m.accumulator) for m in measured if (part := m.part()) is not None]
    if most_slices(kernel.problem, kernel.pass_) == 1:
        parts = [(part, 0) for part, _ in parts if part.micro_batch == mini_batch]
    if not any(accumulator for _, accumulator in parts):
        return desirable_set([part for part, _ in parts], mini_batch)
    most = most_slices_in_place(kernel.problem, kernel.pass_)
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


def _of_policy(kernel: Kernel, rows: Sequence[Measurement], policy: str) -> list[Measurement]:
    sizes = usable_sizes(policy, kernel.problem, kernel.pass_)
    missing = sorted(set(sizes) - {row.micro_batch for row in rows})
    if missing:
        raise MucudnnError(f"{kernel}: nothing was measured at micro-batch {', '.join(map(str, missing))}")
    return [row for row in rows if row.micro_batch in sizes]


def _reuse(
    desirable: Mapping[Kernel, Sequence[Configuration]], limit: int | None
) -> dict[Kernel, Configuration]:
    """WR: the fastest within the limit, which is the last of a desirable set that stays within it."""
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


def _divide(
    desirable: Mapping[Kernel, Sequence[Configuration]], limits: Limits, listener: Listener | None
) -> dict[Kernel, Configuration]:
    """WD."""
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
            f"The division of the total was stopped after {division.seconds:.0f} s at a gap of "
            f"{division.gap:.2%}: no other saves more than that much of the time"
        )
    return division.choice


def _best_undivided(
    kernel: Kernel, measured: Sequence[Measurement], limit: int | None
) -> Configuration | None:
    whole = [part for m in measured if m.micro_batch == kernel.problem.mini_batch and (part := m.part())]
    fitting = [part for part in whole if limit is None or part.workspace <= limit]
    return Configuration((min(fitting, key=lambda p: (p.time_ms, p.workspace)),)) if fitting else None
