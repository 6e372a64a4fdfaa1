"""The source of STOCK: a framework that runs a kernel by itself and competes with an engine's algorithms."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from mucudnn._native import Engine
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import STOCK, STOCK_SLICE, Machine, Measurement
from mucudnn.costs.table import CostTable
from mucudnn.measuring.buffers import Tensors
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration


class StockTiming(NamedTuple):
    """The median of the times, the distance between their quartiles, and the scratch memory in bytes."""

    median_ms: float
    spread_ms: float
    workspace: int


class StockTimer(Protocol):
    """The tensors of one kernel, on which the framework's own operator is timed."""

    def measure(self, micro_batch: int, *, is_slice: bool, budget_ms: float | None = None) -> StockTiming:
        """Time the operator at a micro-batch size. Raises RuntimeError, MemoryError.

        A slice counts with the copy or the sum that brings its result into place. With `budget_ms` one timed
        run is enough, and more are made within these ms.
        """

    def tensors(self, engine: Engine) -> Tensors:
        """Return the same tensors as an engine's memory. They must not outlive the timer."""


class Source(Protocol):
    """A framework that runs kernels by itself. `machine` names its version, its libraries and its flags."""

    machine: Machine

    def timer(self, kernel: Kernel, samples: int) -> StockTimer:
        """Return a timer whose tensors have that many samples. Raises RuntimeError, MemoryError."""

    def compare(
        self, engine: Engine, kernel: Kernel, configurations: Sequence[Configuration], rounds: int
    ) -> list[list[float]]:
        """Return the times in ms of configurations that may have STOCK, run whole, interleaved."""


def costs_with_stock(costs: CostTable, cache: Cache, source: Source) -> CostTable:
    """Return the costs with the rows of STOCK, which the decisions read like those of any algorithm.

    The row at the mini-batch is that of an undivided call. The rows at smaller sizes are those of slices.
    """
    return replace(
        costs,
        measurements={
            kernel: [*rows, *_stock_rows(cache.measurements(source.machine, kernel), kernel)]
            for kernel, rows in costs.measurements.items()
        },
    )


def _stock_rows(rows: Sequence[Measurement], kernel: Kernel) -> list[Measurement]:
    return [
        replace(row, algorithm=STOCK)
        for row in rows
        if row.algorithm == stock_row(kernel, row.micro_batch) and row.micro_batch <= kernel.mini_batch
    ]


def stock_row(kernel: Kernel, micro_batch: int) -> str:
    """Return the algorithm under which the cache keeps STOCK at a micro-batch size of this kernel."""
    return STOCK if micro_batch == kernel.mini_batch else STOCK_SLICE


def runs_stock(configuration: Configuration | None) -> bool:
    """Return whether the framework runs any part of a configuration."""
    return configuration is not None and any(part.algorithm == STOCK for part in configuration.parts)
