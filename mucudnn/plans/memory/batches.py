"""The memory that mini-batches of a network need on a modelled device, and the largest that fit."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from mucudnn.errors import NothingFitsError
from mucudnn.listener import Listener
from mucudnn.measuring.modelled_device import ModelledDevice
from mucudnn.plans.memory.allocations import Update
from mucudnn.plans.memory.costs import model_costs
from mucudnn.plans.memory.fit import Fit, Surroundings, fit_network, largest, name_optimizer
from mucudnn.plans.memory.planning import MemoryOptions, plan_network
from mucudnn.plans.memory.training_step import Costs, count_work
from mucudnn.problems.network import Network

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


class NetworkFits:
    """The memory that a network needs on a device, at any mini-batch. None is a network file's own."""

    def __init__(
        self,
        read: Callable[[int | None], Network],
        device: ModelledDevice,
        optimizer: str | None,
        listener: Listener,
    ) -> None:
        self._read, self._device, self._optimizer, self._listener = read, device, optimizer, listener
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
        """Return the memory and the time of a mini-batch, under a plan if it does not fit without one."""
        network, costs, fit = self._find(batch)
        device = self._device
        size = next((t.shape[0] for t in network.tensors if t.kind == "input" and t.shape), 0)
        unlimited_ms = count_work(network, costs).unlimited_ms
        planned_ms = unlimited_ms if fit.fits else None
        if not fit.fits and fit.fits_with_plan:
            left = device.memory - self._count_optimizer(network).state - device.context
            self._listener.message(f"planning mini-batch {size} on {device.name}")
            try:
                planned_ms = plan_network(
                    network, costs, MemoryOptions(left), listener=self._listener
                ).time_ms
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
