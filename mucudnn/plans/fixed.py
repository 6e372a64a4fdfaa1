"""Choices that no clock decides, and those that do not depend on the mini-batch.

A batch-invariant choice has one algorithm for a problem without its mini-batch. A sample's bits then depend
on the mini-batch only if the algorithm's own arithmetic does, as that of GEMM may. This is tried on the
device: if a slice gives a sample other bits than the sample gets alone, the mini-batch runs in slices of one
sample.
"""

from collections.abc import Sequence
from dataclasses import replace

from mucudnn.costs.records import Measurement
from mucudnn.costs.table import CostTable
from mucudnn.errors import UsageError
from mucudnn.measuring.bench import Bench, EngineBench
from mucudnn.measuring.modelled_costs import modelled_table
from mucudnn.plans.decide import (
    Decision,
    Limits,
    choose_within,
    decide,
    fastest_configuration,
    nothing_fits,
)
from mucudnn.plans.trial import is_invariant
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration

_POLICY = "power_of_two"
_REFERENCE = 8  # the mini-batch whose fastest algorithm runs every mini-batch


def decide_without_clock(
    bench: Bench, kernels: Sequence[Kernel], policy: str, limits: Limits, *, batch_invariant: bool
) -> list[Decision]:
    """Choose a configuration for each kernel without measuring.

    Raises NothingFitsError, and UsageError for a total with `batch_invariant`.
    """
    if batch_invariant and limits.mode == "wd":
        raise UsageError(
            "a division of a total depends on the mini-batch, so it cannot be batch-invariant: give a limit "
            "for each kernel instead"
        )
    decisions = decide(modelled_table(bench, kernels, policy), policy, limits, bench.listener)
    if not batch_invariant:
        return decisions
    choices = [invariant_choice(bench, kernel, limits.workspace) for kernel in kernels]
    return [
        replace(decision, divided=choice, desirable=(choice,))
        for decision, choice in zip(decisions, choices, strict=True)
    ]


def fixed_choice(bench: EngineBench, kernel: Kernel, policy: str, limit: int | None) -> Configuration:
    """Return the configuration within a limit that the model finds fastest. Raises NothingFitsError."""
    return choose_within(modelled_table(bench, [kernel], policy), kernel, policy, limit)


def invariant_choice(bench: Bench, kernel: Kernel, limit: int | None) -> Configuration:
    """Return a configuration with which a sample's bits depend on the sample, the filter and the limit alone.

    The sum of a filter gradient depends on the mini-batch in any case; its configuration is a fixed choice.
    Raises NothingFitsError.
    """
    if kernel.pass_ == "backward_filter":
        return fixed_choice(bench, kernel, _POLICY, limit)
    algorithm = _algorithm(bench, kernel.at(_REFERENCE), limit)
    rows = _rows_of(algorithm, modelled_table(bench, [kernel], _POLICY), kernel)
    chosen = choose_within(CostTable(bench.machine, {kernel: rows}, complete=False), kernel, _POLICY, limit)
    sizes = {part.micro_batch for part in chosen.parts} - {1}
    if all(is_invariant(bench, kernel.at(size), algorithm) for size in sizes):
        return chosen
    alone = next(part for row in rows if row.micro_batch == 1 and (part := row.part()))
    return Configuration((alone,) * kernel.mini_batch)


def _algorithm(bench: Bench, kernel: Kernel, limit: int | None) -> str:
    """Return the algorithm that takes the least time alone, also in slices of one sample within the limit."""
    costs = modelled_table(bench, [kernel], _POLICY)
    small = [row for row in costs.measurements[kernel] if row.micro_batch == 1]
    names = sorted({row.algorithm for row in small if limit is None or row.workspace <= limit})
    fastest = {name: fastest_configuration(_rows_of(name, costs, kernel), kernel, limit) for name in names}
    times = {name: choice.time_ms for name, choice in fastest.items() if choice is not None}
    if not times:
        raise nothing_fits(kernel, [Configuration((part,)) for row in small if (part := row.part())], limit)
    return min(times, key=lambda name: (times[name], name))


def _rows_of(algorithm: str, costs: CostTable, kernel: Kernel) -> list[Measurement]:
    return [row for row in costs.measurements[kernel] if row.algorithm == algorithm]
