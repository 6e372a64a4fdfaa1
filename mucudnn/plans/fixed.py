"""Choices that no clock decides, and those that do not depend on the mini-batch.

A batch-invariant choice has one algorithm for a problem without its mini-batch. A sample's bits then depend
on the mini-batch only if the algorithm's own arithmetic does, as that of GEMM may. This is tried on the
device: if a slice gives a sample other bits than the sample gets alone, the mini-batch runs in slices of one
sample.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from mucudnn._native import Engine
from mucudnn.costs.records import Measurement
from mucudnn.costs.table import CostTable
from mucudnn.errors import UsageError
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.modelled_costs import modelled_costs
from mucudnn.plans.decide import (
    Decision,
    Limits,
    choose_within,
    decide,
    fastest_configuration,
    nothing_fits,
)
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration

_POLICY = "power_of_two"
_REFERENCE = 8  # the mini-batch whose fastest algorithm runs every mini-batch
_tried: dict[tuple[object, ...], bool] = {}


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
    rows: dict[Kernel, Sequence[Measurement]] = {}
    for kernel in kernels:
        rows |= modelled_costs(bench, kernel, policy).measurements
    decisions = decide(CostTable(bench.machine, rows, complete=False), policy, limits, bench.listener)
    if not batch_invariant:
        return decisions
    choices = [invariant_choice(bench, kernel, limits.workspace) for kernel in kernels]
    return [
        replace(decision, divided=choice, desirable=(choice,))
        for decision, choice in zip(decisions, choices, strict=True)
    ]


def fixed_choice(bench: Bench, kernel: Kernel, policy: str, limit: int | None) -> Configuration:
    """Return the configuration within a limit that the model finds fastest. Raises NothingFitsError."""
    return choose_within(modelled_costs(bench, kernel, policy), kernel, policy, limit)


def invariant_choice(bench: Bench, kernel: Kernel, limit: int | None) -> Configuration:
    """Return a configuration with which a sample's bits depend on the sample, the filter and the limit alone.

    The sum of a filter gradient depends on the mini-batch in any case; its configuration is a fixed choice.
    Raises NothingFitsError.
    """
    if kernel.pass_ == "backward_filter":
        return fixed_choice(bench, kernel, _POLICY, limit)
    algorithm = _algorithm(bench, kernel.at(_REFERENCE), limit)
    rows = _rows_of(algorithm, modelled_costs(bench, kernel, _POLICY), kernel)
    chosen = choose_within(CostTable(bench.machine, {kernel: rows}, complete=False), kernel, _POLICY, limit)
    sizes = {part.micro_batch for part in chosen.parts} - {1}
    if all(_is_invariant(bench.engine, kernel.at(size), algorithm) for size in sizes):
        return chosen
    alone = next(part for row in rows if row.micro_batch == 1 and (part := row.part()))
    return Configuration((alone,) * kernel.mini_batch)


def _algorithm(bench: Bench, kernel: Kernel, limit: int | None) -> str:
    """Return the algorithm that takes the least time alone, also in slices of one sample within the limit."""
    costs = modelled_costs(bench, kernel, _POLICY)
    small = [row for row in costs.measurements[kernel] if row.micro_batch == 1]
    names = sorted({row.algorithm for row in small if limit is None or row.workspace <= limit})
    fastest = {name: fastest_configuration(_rows_of(name, costs, kernel), kernel, limit) for name in names}
    times = {name: choice.time_ms for name, choice in fastest.items() if choice is not None}
    if not times:
        raise nothing_fits(kernel, [Configuration((part,)) for row in small if (part := row.part())], limit)
    return min(times, key=lambda name: (times[name], name))


def _rows_of(algorithm: str, costs: CostTable, kernel: Kernel) -> list[Measurement]:
    return [row for row in costs.measurements[kernel] if row.algorithm == algorithm]


def _is_invariant(engine: Engine, kernel: Kernel, algorithm: str) -> bool:
    """Return whether a sample gets the bits that it gets alone, at each place and beside any neighbours."""
    key = engine.device, engine.library, engine.threads, str(kernel.problem), kernel.pass_, algorithm
    if key not in _tried:
        _tried[key] = _try(engine, kernel, algorithm)
    return _tried[key]


def _try(engine: Engine, kernel: Kernel, algorithm: str) -> bool:
    problem, n, random = kernel.problem, kernel.mini_batch, np.random.default_rng(1)
    is_forward = kernel.pass_ == "forward"
    elements = problem.x_elements // n, problem.y_elements // n
    read, written = elements if is_forward else elements[::-1]

    def values(count: int) -> npt.NDArray[np.float64]:
        # The sums cancel, and their terms differ much in size, so that the order of additions shows.
        return random.standard_normal(count) * 2.0 ** random.integers(-6, 6, count)

    sample, filter_, added = values(read), values(problem.w_elements), values(written)

    def run(samples: npt.NDArray[np.float64], count: int, beta: float) -> npt.NDArray[np.int64]:
        before = np.tile(added, count)
        kind, memory = problem.data_type, []
        for contents in (samples, filter_, before):
            memory.append(engine.allocate(problem.element_size * contents.size))
            memory[-1].write(kind, contents)
        own, w, out = memory
        x, y = (own, out) if is_forward else (out, own)
        division = engine.prepare(kernel.at(count), ((count, algorithm),))
        division.execute(x, w, y, engine.allocate(division.workspace), beta=beta)
        return out.read(kind, before.size).view(np.int64).reshape(count, written)

    mixed = np.concatenate([values(read) for _ in range(n)]).reshape(n, read)
    mixed[n // 2] = np.nan
    mixed[[0, -1]] = sample
    # PyTorch's functions write the bias first, and add the convolution to it.
    return all(
        bool((rows == run(sample, 1, beta)).all())
        for beta in (0.0, 1.0)
        for rows in (run(np.tile(sample, n), n, beta), run(mixed.ravel(), n, beta)[[0, -1]])
    )
