"""The bench: the engine that kernels are measured on, and everything else that a measurement needs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from copy import copy
from dataclasses import replace
from typing import TypeVar

from mucudnn._native import Engine, Problem
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import DETERMINISTIC, Listed, Machine, Measurement
from mucudnn.costs.table import CostTable
from mucudnn.listener import Listener
from mucudnn.measuring.budget import Budget, current_budget
from mucudnn.measuring.buffers import Extent, Tensors, measuring_extent
from mucudnn.measuring.candidates import candidates, runnable
from mucudnn.measuring.runners import Replay, Runner
from mucudnn.measuring.source import Source, costs_with_stock
from mucudnn.problems.kernels import Kernel

Algorithm = TypeVar("Algorithm", Listed, Measurement)


def machine_of(engine: Engine) -> Machine:
    """Return the machine that an engine's measurements belong to."""
    return Machine(engine.kind, engine.device, engine.library, engine.threads)


class EngineBench:
    """An engine whose algorithms a runner admits, for choices by modelled costs.

    With `deterministic` no algorithm counts whose bits differ between runs.
    """

    def __init__(self, engine: Engine, listener: Listener, runner: Runner, deterministic: bool) -> None:
        self.engine, self.machine = engine, machine_of(engine)
        self.listener, self.runner, self.deterministic = listener, runner, deterministic

    def candidates(self, kernel: Kernel, sizes: Sequence[int]) -> dict[int, list[Listed]]:
        """Return the runnable algorithms at each micro-batch size, from the engine."""
        return {size: self._admitted(runnable(self.engine.enumerate(kernel.at(size)))) for size in sizes}

    def _admitted(self, algorithms: Sequence[Algorithm]) -> list[Algorithm]:
        return [each for each in algorithms if not self.deterministic or DETERMINISTIC in each.notes.split()]


class Bench(EngineBench):
    """An engine, the cache that keeps its measurements, and the listener that hears of the progress.

    The `runner` decides how to measure. With a `source`, the caller's framework competes with the engine's
    algorithms. Measurements allocate at most `memory_cap` bytes, half of the device memory that is available
    when the bench is created. When the `budget` is spent, only what a choice cannot do without is measured.
    `made` counts the measurements and comparisons.
    """

    def __init__(
        self, engine: Engine, cache: Cache, listener: Listener, runner: Runner, source: Source | None = None,
        deterministic: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(engine, listener, runner, deterministic)
        self.cache, self.source = cache, source
        self.made = Counter[str]()
        self.budget = current_budget()
        self._kept: tuple[Problem, Tensors] | None = None
        self.memory_cap = engine.available_memory // 2

    def costs(self, kernels: Iterable[Kernel]) -> CostTable:
        """Return the cached costs of these kernels, with those of STOCK if there is a source."""
        is_complete = self.runner.is_complete and not self.budget.is_spent
        costs = CostTable.read(self.cache, self.machine, kernels)
        rows = {kernel: self._admitted(own) for kernel, own in costs.measurements.items()}
        costs = replace(costs, measurements=rows, complete=is_complete and costs.complete)
        return costs if self.source is None else costs_with_stock(costs, self.cache, self.source)

    def without_source(self) -> "Bench":
        """Return a copy without the source of STOCK, which shares this bench's `made`."""
        bench = copy(self)
        bench.source = None
        return bench

    def candidates(self, kernel: Kernel, sizes: Sequence[int]) -> dict[int, list[Listed]]:
        """Return the runnable algorithms at each micro-batch size, from the cache or else from the engine."""
        keeps_failures = not self.runner.is_hurried
        every = candidates(
            self.engine, self.machine, self.cache, kernel, sizes, keeps_failures=keeps_failures
        )
        return {size: self._admitted(listed) for size, listed in every.items()}

    def exceeding(self, kernel: Kernel, samples: int, limit: int) -> list[str]:
        """Return the algorithms worth measuring whose workspace for that many samples exceeds a limit."""
        return [
            candidate.algorithm
            for candidate in self.candidates(kernel, [samples])[samples]
            if candidate.workspace > limit and self.runner.admits(kernel, candidate.algorithm)
        ]

    def extent(self, kernel: Kernel) -> Extent:
        """Return the extent of the tensors to time a kernel on. Raises MucudnnError above the memory cap."""
        beyond = self.engine.bytes_beyond_caches if self.runner.is_complete else 0
        return measuring_extent(kernel.problem, self.memory_cap, beyond)

    def tensors(self, kernel: Kernel) -> Tensors:
        """Return random tensors for a kernel, which the passes of its problem share."""
        if self._kept is None or self._kept[0] != kernel.problem:
            self._kept = None
            self._kept = kernel.problem, Tensors.random(self.engine, kernel.problem, self.extent(kernel))
        return self._kept[1]


class RecordedBench(Bench):
    """A bench without an engine: it replays recorded measurements, which may come from another machine."""

    def __init__(self, machine: Machine, cache: Cache, listener: Listener) -> None:
        self.machine, self.cache, self.listener = machine, cache, listener
        self.runner, self.source, self.made = Replay(), None, Counter[str]()
        self.deterministic = False
        self.budget = Budget()
