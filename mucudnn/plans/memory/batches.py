"""The memory that mini-batches of a network need on a modelled device, and the largest that fit."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from mucudnn.errors import NothingFitsError
from mucudnn.listener import Listener
from mucudnn.measuring.modelled_device import ModelledDevice
from mucudnn.plans.memory.allocations import Update
from mucudnn.plans.memory.costs import model_costs
from mucudnn.plans.memory.fit import Fit, Surroundings, fit_network, name_optimizer
from mucudnn.plans.memory.planning import MemoryOptions, plan_network
from mucudnn.plans.memory.training_step import Costs, count_work
from mucudnn.problems.network import Network

_ROWS = 6  # the most powers of two in the table, up to the largest mini-batch
PROBES = (2, 6)  # the mini-batches from which the need of others is predicted


@dataclass(frozen=True)
class FitRow:
    """The memory that a mini-batch needs on a device.

    `planned_ms` is None if no plan makes it fit, and for an inference that only divided convolutions fit.
    `costs` says where the times of the convolutions come from.
    """

    device: str
    memory: int
    batch: int
    peak: int
    floor: int
    time_ms: float
    planned_ms: float | None
    costs: str
    parts: dict[str, int]


class NetworkFits:
    """The memory that a network needs on a device at any mini-batch; None is the mini-batch of a file."""

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
        exact = self._read
        self._read = extrapolate(*map(exact, PROBES)) or exact
        most, planned = self._find_largest()
        if planned and exact(planned) != self._read(planned):  # sizes may grow otherwise
            self._read, self._find = exact, cache(self._find_fit)
            most, planned = self._find_largest()
        # A single row above the largest mini-batch shows what a plan costs, because each plan takes seconds.
        powers = [1 << n for n in range(most.bit_length())][-_ROWS:]
        listed = [batch] if batch else [*powers, min(planned, 2 * most or planned)]
        return most, planned, [self.find_row(size) for size in sorted({*listed, most} - {0})]

    def _find_largest(self) -> tuple[int, int]:
        return (
            largest(lambda size: self._find(size)[2].peak, self._device.memory),
            largest(lambda size: self._find(size)[2].floor, self._device.memory),
        )

    def find_row(self, batch: int | None) -> FitRow:
        """Return the memory and the time of a mini-batch, under a plan if it does not fit without one."""
        network, costs, fit = self._find(batch)
        device = self._device
        size = next((t.shape[0] for t in network.tensors if t.kind == "input" and t.shape), 0)
        unlimited_ms = count_work(network, costs).unlimited_ms
        planned_ms = unlimited_ms if fit.fits else None
        if not fit.fits and fit.fits_with_plan and network.turn < len(network.steps):
            left = device.memory - self._count_optimizer(network).state - device.context
            self._listener.message(f"planning mini-batch {size} on {device.name}")
            try:
                planned_ms = plan_network(
                    network, model_costs(network, device), MemoryOptions(left), listener=self._listener
                ).time_ms
            except NothingFitsError:
                planned_ms = None
        return FitRow(
            device.name, device.memory, size, fit.peak, fit.floor, unlimited_ms, planned_ms, costs.summary,
            dict(fit.parts),
        )  # fmt: skip

    def _count_optimizer(self, network: Network) -> Update:
        trained = [tensor for tensor in network.tensors if tensor.kind == "gradient"]
        return name_optimizer(self._optimizer or "sgd", trained)

    def _find_fit(self, batch: int | None) -> tuple[Network, Costs, Fit]:
        network = self._read(batch)
        costs = model_costs(network, self._device, divide=False)
        beside = Surroundings(self._count_optimizer(network), self._device.context)
        fit = fit_network(network, costs, memory=self._device.memory, surroundings=beside)
        return network, costs, fit


def extrapolate(near: Network, far: Network) -> Callable[[Any], Network] | None:
    """Return a network's form at any mini-batch, from those at both PROBES; None if their steps differ.

    Each length of a tensor and each kernel's mini-batch is taken to grow evenly with the mini-batch.
    """
    one, other = (
        ([(t.name, len(t.shape)) for t in network.tensors], [len(step.kernels) for step in network.steps])
        for network in (near, far)
    )
    small, large = PROBES
    if one != other:
        return None

    def at(batch: int) -> Network:
        def value_at(first: int, second: int) -> int:
            return first + (second - first) * (batch - small) // (large - small)

        tensors = tuple(
            replace(tensor, shape=tuple(map(value_at, tensor.shape, other.shape)))
            for tensor, other in zip(near.tensors, far.tensors, strict=True)
        )
        steps = []
        for step, other in zip(near.steps, far.steps, strict=True):
            pairs = zip(step.kernels, other.kernels, strict=True)
            kernels = tuple(kernel.at(value_at(kernel.mini_batch, more.mini_batch)) for kernel, more in pairs)
            steps.append(replace(step, kernels=kernels, flops=value_at(step.flops, other.flops)))
        return Network(tensors, tuple(steps))

    return at


def largest(need: Callable[[int], int], memory: int) -> int:
    """Return the largest batch whose need fits the memory, or 0.

    The needs of small batches lead to a guess, near which the search takes few calls. Fragmentation may keep
    a batch from fitting although some larger ones fit, so the search goes on beyond the first one that does
    not fit.
    """
    need = cache(need)

    def fits(batch: int) -> bool:
        return need(batch) <= memory

    best = search(fits, _guess_batch(need, memory))
    while better := next((n for n in _beyond(best) if fits(n)), 0):
        best = search(fits, better)
    return best


def _guess_batch(need: Callable[[int], int], memory: int) -> int:
    """Return a batch that probably needs about as much as the memory, if the need grows evenly.

    The guess grows in steps, because the optimizer's step may take more than small batches do.
    """
    near, far = PROBES
    for _ in range(4):
        if near != far:
            slope = max((need(far) - need(near)) / (far - near), 1.0)
            near, far = far, min(max(1, far + int((memory - need(far)) / slope)), 16 * far)
    return far


def _beyond(number: int) -> Sequence[int]:
    """Return the round numbers up to an eighth above one that fits, at most eight, and the largest first."""
    step = 1 << max(number.bit_length() - 6, 0)
    return range((number // step + 1) * step, number + number // 8 + 1, step)[::-1]


def search(fits: Callable[[int], bool], guess: int) -> int:
    """Return a number that fits, or 0, such that the next one does not."""
    low, high, stride = 0, max(guess, 1), 1
    if fits(high):
        low = high
        while fits(low + stride):
            low, stride = low + stride, 2 * stride
        high = low + stride
    else:
        while high - stride > 0 and not fits(high - stride):
            high, stride = high - stride, 2 * stride
        low = max(high - stride, 0)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low
