"""The source of STOCK: a framework whose own operators compete with an engine's algorithms."""

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

from mucudnn._native import Engine, Timing
from mucudnn.costs.cache import Cache
from mucudnn.costs.records import STOCK, STOCK_SLICE, Machine, Measurement
from mucudnn.costs.table import CostTable
from mucudnn.measuring.buffers import Tensors
from mucudnn.problems.kernels import Kernel
from mucudnn.solver import Configuration


class StockTiming(NamedTuple):
    """The estimated time, the scratch memory in bytes, and what the time was estimated from.

    `wall_ms`, `cpu_ms` and `is_busy` are as in `mucudnn._native.Timing`.
    """

    time_ms: float
    workspace: int
    wall_ms: float | None = None
    cpu_ms: float | None = None
    is_busy: bool = False


class InterleavedTimes(NamedTuple):
    """The comparable times of interleaved candidates, in ms.

    `is_busy` says that too few rounds were undisturbed. On several threads the times then decide nothing,
    because threads spin while they wait.
    """

    times_ms: list[list[float]]
    is_busy: bool


def timed(row: Measurement, timing: Timing | StockTiming) -> Measurement:
    """Return a measurement with new times."""
    return replace(
        row, time_ms=timing.time_ms, wall_ms=timing.wall_ms, cpu_ms=timing.cpu_ms,
        busy_tries=int(timing.is_busy),
    )  # fmt: skip


class StockTimer(Protocol):
    """A timer of the framework's own operator, with the tensors of one kernel."""

    def measure(self, micro_batch: int, *, is_slice: bool, budget_ms: float | None = None) -> StockTiming:
        """Time the operator at a micro-batch size. Raises RuntimeError, MemoryError, UnfinishedError.

        The time of a slice includes the copy or the sum that puts its result into place. With `budget_ms` a
        single timed run is enough, and more follow only within these ms.
        """

    def tensors(self, engine: Engine) -> Tensors:
        """Return the same tensors as memory of an engine, which must not outlive the timer."""


class Source(Protocol):
    """A framework that runs kernels by itself. `machine` names its version, its libraries and its flags."""

    machine: Machine

    def admits(self, kernel: Kernel) -> bool:
        """Return whether the framework's own operator has the arithmetic that the kernel asks for."""

    def timer(self, kernel: Kernel, samples: int) -> StockTimer:
        """Return a timer whose tensors have that many samples. Raises RuntimeError, MemoryError."""

    def compare(
        self, engine: Engine, kernel: Kernel, configurations: Sequence[Configuration], rounds: int
    ) -> InterleavedTimes:
        """Return the ms of configurations that may include STOCK, run interleaved on the whole mini-batch."""


def costs_with_stock(costs: CostTable, cache: Cache, source: Source) -> CostTable:
    """Return the costs with the rows of STOCK, which decisions treat like any other algorithm.

    The row at the mini-batch is an undivided call's; those at smaller sizes are the slices'.
    """
    return replace(
        costs,
        measurements={
            kernel: [*rows, *stock_rows(cache.measurements(source.machine, kernel), kernel)]
            for kernel, rows in costs.measurements.items()
        },
    )


def stock_rows(rows: Sequence[Measurement], kernel: Kernel) -> list[Measurement]:
    """Return a framework's rows as those of STOCK for a kernel: the whole mini-batch, and slices of it."""
    return [
        replace(row, algorithm=STOCK)
        for row in rows
        if row.algorithm == stock_row(kernel, row.micro_batch) and row.micro_batch <= kernel.mini_batch
    ]


def stock_row(kernel: Kernel, micro_batch: int) -> str:
    """Return the algorithm name by which the cache knows STOCK at a micro-batch size of this kernel."""
    return STOCK if micro_batch == kernel.mini_batch else STOCK_SLICE


def runs_stock(configuration: Configuration | None) -> bool:
    """Return whether the framework runs any part of a configuration."""
    return configuration is not None and any(part.algorithm == STOCK for part in configuration.parts)
