"""The answer of `mucudnn memory` without a limit: the mini-batches and the devices that fit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from mucudnn.cli.terminal import Answer, Lines, Terminal, table
from mucudnn.errors import NothingFitsError
from mucudnn.measuring.modelled_device import ModelledDevice, find_device
from mucudnn.plans.memory.allocations import Update
from mucudnn.plans.memory.costs import model_costs
from mucudnn.plans.memory.fit import Fit, Surroundings, fit_network, largest, name_optimizer
from mucudnn.plans.memory.planning import MemoryOptions, plan_network
from mucudnn.plans.memory.training_step import Costs, count_work
from mucudnn.problems.network import Network
from mucudnn.sizes import format_size

_ROWS = 6  # the most powers of two in the table, up to the largest mini-batch


@dataclass(frozen=True)
class FitRow:
    """The memory that a mini-batch needs on a device; `planned_ms` is None if no plan makes it fit."""

    device: str
    memory: int
    batch: int
    peak: int
    floor: int
    time_ms: float
    planned_ms: float | None
    parts: dict[str, int]


@dataclass(frozen=True)
class FittingBatches(Answer):
    """The largest mini-batches of a network on a device, and what they and smaller ones need."""

    network: str
    optimizer: str | None
    device: str
    largest: int | None
    largest_with_plan: int | None
    batches: Sequence[FitRow]

    def lines(self) -> Lines:
        """Yield a table of mini-batches, and the largest."""
        device = find_device(self.device)
        sizes = f"{format_size(device.memory)}, of which CUDA takes {format_size(device.context)}"
        yield f"{self.network} on {device.name}, {sizes}, {_name(self.optimizer)} (all times modelled)"
        heads = (">mini-batch", "B>peak", "B>least with a plan", "ms>step ms", ">with a plan, relative")
        yield table(*heads, rows=((x.batch, x.peak, x.floor, x.time_ms, _compare(x)) for x in self.batches))
        if self.largest is not None:
            yield (f"largest mini-batch: {self.largest} without a plan, {self.largest_with_plan} with a plan")


@dataclass(frozen=True)
class FittingDevices(Answer):
    """The memory that a network needs on each modelled device."""

    network: str
    optimizer: str | None
    devices: Sequence[FitRow]

    def lines(self) -> Lines:
        """Yield a table of devices."""
        batch = self.devices[0].batch
        yield f"{self.network}, mini-batch {batch}, {_name(self.optimizer)} (all times modelled)"
        heads = ("device", "B>memory", "B>peak", "B>least with a plan", "fits", "ms>step ms", ">relative")
        yield table(*heads, rows=self._rows())

    def _rows(self) -> Iterator[Sequence[Any]]:
        fastest = min((row.planned_ms for row in self.devices if row.planned_ms is not None), default=0.0)
        for row in self.devices:
            ms = row.planned_ms
            fits = "yes" if row.peak <= row.memory else "no" if ms is None else "with a plan"
            times = ("", "") if ms is None else (ms, f"{ms / fastest:.2f}")
            yield row.device, row.memory, row.peak, row.floor, fits, *times


class NetworkFits:
    """The memory that a network needs on a device, at any mini-batch. None is a network file's own."""

    def __init__(
        self, read: Callable[[int | None], Network], device: ModelledDevice, optimizer: str | None
    ) -> None:
        self._read, self._device, self._optimizer = read, device, optimizer
        self._find = cache(self._find_fit)

    def find_batches(self, batch: int | None) -> tuple[int, int, list[FitRow]]:
        """Return the largest mini-batches, without and with a plan, and the rows of some, or of `batch`."""
        most = largest(lambda size: self._find(size)[2].peak, self._device.memory)
        planned = largest(lambda size: self._find(size)[2].floor, self._device.memory)
        # A single row above the largest mini-batch shows what a plan costs, because each plan takes seconds.
        powers = [1 << n for n in range(most.bit_length())][-_ROWS:]
        listed = [batch] if batch else [*powers, min(planned, 2 * most or planned)]
        return most, planned, [self.find_row(size) for size in sorted({*listed, most} - {0})]

    def find_row(self, batch: int | None) -> FitRow:
        """Return what a mini-batch needs. If it does not fit, plan it."""
        network, costs, fit = self._find(batch)
        device = self._device
        size = next((t.shape[0] for t in network.tensors if t.kind == "input" and t.shape), 0)
        unlimited_ms = count_work(network, costs).unlimited_ms
        planned_ms = unlimited_ms if fit.fits else None
        if not fit.fits and fit.fits_with_plan:
            left = device.memory - self._count_optimizer(network).state - device.context
            Terminal().message(f"planning mini-batch {size} on {device.name}")
            try:
                planned_ms = plan_network(network, costs, MemoryOptions(left), listener=Terminal()).time_ms
            except NothingFitsError:
                planned_ms = None
        return FitRow(
            device.name, device.memory, size, fit.peak, fit.floor, unlimited_ms, planned_ms, dict(fit.parts)
        )

    def _count_optimizer(self, network: Network) -> Update:
        trained = [tensor for tensor in network.tensors if tensor.kind == "gradient"]
        return name_optimizer(self._optimizer or "sgd", trained)

    def _find_fit(self, batch: int | None) -> tuple[Network, Costs, Fit]:
        network = self._read(batch)
        costs = model_costs(network, self._device)
        beside = Surroundings(self._count_optimizer(network), self._device.context)
        return network, costs, fit_network(network, costs, memory=self._device.memory, surroundings=beside)


def _compare(row: FitRow) -> str:
    if row.planned_ms is None:
        return "does not fit"
    return f"{row.planned_ms / row.time_ms:.2f}" if row.time_ms else "1.00"


def _name(optimizer: str | None) -> str:
    return f"optimizer {optimizer}" if optimizer else "without an optimizer's state"
