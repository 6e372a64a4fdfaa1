"""The answer of `mucudnn memory` without a limit: the mini-batches and the devices that fit."""

import argparse
import math
from typing import Any

from mucudnn.cli.options import strict_math
from mucudnn.cli.terminal import Terminal, show, show_json, table
from mucudnn.errors import NothingFitsError, UsageError
from mucudnn.measuring.modelled_device import ModelledDevice, find_device
from mucudnn.output.text import milliseconds
from mucudnn.plans.memory.allocations import Update
from mucudnn.plans.memory.costs import model_costs
from mucudnn.plans.memory.fit import Fit, Surroundings, fit_network, largest, name_optimizer
from mucudnn.plans.memory.planning import MemoryOptions, plan_network
from mucudnn.plans.memory.training_step import Costs, count_work
from mucudnn.problems.network import Network
from mucudnn.problems.sources import TRAINABLE, read_network
from mucudnn.sizes import format_size

_ROWS = 6  # the most powers of two in the table, up to the largest mini-batch
_PLANNING = {
    "policy": "joint", "workspace": None, "host_memory": None, "bandwidth": None, "exact": False,
    "seconds": math.inf,
    "batch_invariant": None, "choice": None,
    "no_recompute": False, "no_offload": False, "no_divide": False, "output": None, "page": None,
}  # fmt: skip


def show_fit(arguments: argparse.Namespace) -> None:
    """Print what mini-batches, or what devices, need and hold. Raises UsageError."""
    for flag, default in _PLANNING.items():
        if getattr(arguments, flag) != default:
            raise UsageError(
                f"--{flag.replace('_', '-')} is for a plan: give --memory, such as --memory 12GiB"
            )
    if arguments.device == "measured":
        raise UsageError("without --memory all costs are modelled: give --device a modelled device")
    if arguments.devices:
        rows = [_Question(arguments, device).answer(arguments.batch) for device in arguments.devices]
        _show_devices(arguments, rows)
        return
    question = _Question(arguments, find_device(arguments.device))
    if arguments.network not in TRAINABLE:
        _show_batches(arguments, [question.answer(None)], None, None)
        return
    most = largest(lambda batch: question.fit(batch).peak, question.memory)
    planned = largest(lambda batch: question.fit(batch).floor, question.memory)
    # A single row above the largest mini-batch shows what a plan costs, because each plan takes seconds.
    powers = [1 << n for n in range(most.bit_length())][-_ROWS:]
    listed = [arguments.batch] if arguments.batch else [*powers, min(planned, 2 * most or planned)]
    batches = sorted({*listed, most} - {0})
    _show_batches(arguments, [question.answer(batch) for batch in batches], most, planned)


def network_of(arguments: argparse.Namespace, batch: int | None) -> Network:
    """Return the training step that the flags name, at a mini-batch. Raises UsageError, MucudnnError."""
    return read_network(
        arguments.network, batch=batch, data_type=arguments.dtype, layout=arguments.layout,
        math=strict_math(arguments),
    )  # fmt: skip


class _Question:
    """A network on a device, at any mini-batch."""

    def __init__(self, arguments: argparse.Namespace, device: ModelledDevice) -> None:
        self._arguments, self._device = arguments, device
        self.memory = device.memory
        self._fits: dict[int | None, tuple[Network, Costs, Fit]] = {}

    def fit(self, batch: int | None) -> Fit:
        """Return what the training step needs."""
        return self._compute_fit(batch)[2]

    def answer(self, batch: int | None) -> dict[str, Any]:
        """Return the row of a mini-batch; `planned_ms` is None if no plan makes it fit."""
        network, costs, fit = self._compute_fit(batch)
        unlimited_ms = count_work(network, costs).unlimited_ms
        planned_ms = unlimited_ms if fit.fits else None
        if not fit.fits and fit.fits_with_plan:
            left = self.memory - self._count_optimizer(network).state - self._device.context
            Terminal().message(f"planning mini-batch {_batch_of(network)} on {self._device.name}")
            try:
                planned_ms = plan_network(network, costs, MemoryOptions(left), listener=Terminal()).time_ms
            except NothingFitsError:
                planned_ms = None
        return {
            "device": self._device.name, "memory": self.memory, "batch": _batch_of(network), "peak": fit.peak,
            "floor": fit.floor, "time_ms": unlimited_ms, "planned_ms": planned_ms, "parts": dict(fit.parts),
        }  # fmt: skip

    def _count_optimizer(self, network: Network) -> Update:
        trained = [tensor for tensor in network.tensors if tensor.kind == "gradient"]
        return name_optimizer(self._arguments.optimizer or "sgd", trained)

    def _compute_fit(self, batch: int | None) -> tuple[Network, Costs, Fit]:
        if batch not in self._fits:
            network = network_of(self._arguments, batch)
            costs = model_costs(network, self._device)
            optimizer = self._count_optimizer(network)
            beside = Surroundings(optimizer, self._device.context)
            fit = fit_network(network, costs, memory=self.memory, surroundings=beside)
            self._fits[batch] = network, costs, fit
        return self._fits[batch]


def _show_batches(
    arguments: argparse.Namespace, rows: list[dict[str, Any]], most: int | None, planned: int | None
) -> None:
    first = {"network": arguments.network, "device": arguments.device, "optimizer": arguments.optimizer}
    if arguments.json:
        show_json({**first, "largest": most, "largest_with_plan": planned, "batches": rows})
        return
    device = find_device(arguments.device)
    figures = table(">mini-batch", ">peak", ">least with a plan", ">step", ">with a plan, relative")
    for row in rows:
        needs = (format_size(row["peak"]), format_size(row["floor"]), f"{milliseconds(row['time_ms'])} ms")
        figures.add_row(str(row["batch"]), *needs, _compare(row))
    sizes = f"{format_size(device.memory)}, of which CUDA takes {format_size(device.context)}"
    show(
        f"{arguments.network} on {device.name}, {sizes}, {_name(arguments)} (all times modelled)",
        figures,
    )
    if most is not None:
        show(f"largest mini-batch: {most} without a plan, {planned} with a plan")


def _show_devices(arguments: argparse.Namespace, rows: list[dict[str, Any]]) -> None:
    if arguments.json:
        show_json({"network": arguments.network, "optimizer": arguments.optimizer, "devices": rows})
        return
    figures = table("device", ">memory", ">peak", ">least with a plan", "fits", ">step", ">relative")
    fastest = min((row["planned_ms"] for row in rows if row["planned_ms"] is not None), default=0.0)
    for row in rows:
        ms = row["planned_ms"]
        fits = "yes" if row["peak"] <= row["memory"] else "no" if ms is None else "with a plan"
        times = ("", "") if ms is None else (f"{milliseconds(ms)} ms", f"{ms / fastest:.2f}")
        sizes = (format_size(row[key]) for key in ("memory", "peak", "floor"))
        figures.add_row(row["device"], *sizes, fits, *times)
    show(
        f"{arguments.network}, mini-batch {rows[0]['batch']}, {_name(arguments)} (all times modelled)",
        figures,
    )


def _batch_of(network: Network) -> int:
    return next((t.shape[0] for t in network.tensors if t.kind == "input" and t.shape), 0)


def _compare(row: dict[str, Any]) -> str:
    if row["planned_ms"] is None:
        return "does not fit"
    return f"{row['planned_ms'] / row['time_ms']:.2f}" if row["time_ms"] else "1.00"


def _name(arguments: argparse.Namespace) -> str:
    return f"optimizer {arguments.optimizer}" if arguments.optimizer else "without an optimizer's state"
