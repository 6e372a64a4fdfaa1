"""The costs of a network: measured on a device, or modelled by a roofline."""

from collections.abc import Sequence
from dataclasses import replace

from mucudnn.costs.records import Measurement
from mucudnn.costs.table import CostTable
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.modelled_costs import modelled_table
from mucudnn.measuring.modelled_device import ModelledDevice, modelled_configurations, modelled_ms
from mucudnn.plans.decide import desirable_configurations, nothing_fits
from mucudnn.plans.fixed import invariant_choice
from mucudnn.plans.memory.training_step import Costs
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.network import Network
from mucudnn.problems.policies import usable_sizes
from mucudnn.promises import FIXED, USUAL, Promise
from mucudnn.solver import Configuration
from mucudnn.solver.memory.copies import Link

DIVIDED = "power_of_two"


def model_costs(
    network: Network, device: ModelledDevice, *, bandwidth: float | None = None, divide: bool = True
) -> Costs:
    """Return the costs of a network by the roofline of a device.

    `bandwidth`, in bytes per second, replaces the device's own bandwidth to the host. Without `divide` each
    kernel's configurations are undivided.
    """
    kernels = network.kernels()
    undivided = {kernel: modelled_configurations(device, kernel, "undivided") for kernel in kernels}
    divided = {kernel: modelled_configurations(device, kernel, DIVIDED) for kernel in kernels if divide}
    return Costs(
        device.name,
        undivided | divided,
        {kernel: configurations[-1] for kernel, configurations in undivided.items()},
        lambda flops, traffic, data_type: modelled_ms(device, flops, traffic, data_type),
        device.link_of(bandwidth),
        {
            "kernels": device.name_costs(kernels),
            "steps": "modelled",
            "link": "modelled" if bandwidth is None else "given",
            "device": device.source,
        },
    )


def measure_costs(
    network: Network,
    bench: Bench,
    device: ModelledDevice,
    link: Link,
    *,
    policy: str = DIVIDED,
    link_source: str = "measured",
    promise: Promise = USUAL,
    limit: int | None = None,
) -> Costs:
    """Return the costs of a network, with its kernels measured on a bench and other steps modelled.

    Measures what the cache lacks, or nothing with a fixed choice, for which the kernels are modelled too. The
    model uses the rates of `device`. With a batch-invariant promise each kernel that it covers has one
    configuration within the `limit`. Raises MucudnnError, and NothingFitsError for a kernel that no algorithm
    can run.
    """
    kernels, is_fixed = network.kernels(), promise.choice == FIXED
    if is_fixed:
        table = _modelled_kernels(bench, kernels, device, policy)
    else:
        table = benchmark(bench, kernels, policy)
    desirable: dict[Kernel, tuple[Configuration, ...]] = {}
    undivided: dict[Kernel, Configuration] = {}
    for kernel in kernels:
        rows = table.at_sizes(kernel, usable_sizes(policy, kernel))
        desirable[kernel] = tuple(desirable_configurations(rows, kernel))
        if not desirable[kernel]:
            raise nothing_fits(kernel, (), None)
        whole = [row for row in rows if row.is_undivided(kernel.mini_batch)]
        undivided[kernel] = [*desirable[kernel], *desirable_configurations(whole, kernel)][-1]
        if promise.batch_invariant and kernel.pass_ != "backward_filter":
            desirable[kernel] = (_timed(invariant_choice(bench, kernel, limit), rows),)
    modelled = model_costs(network, device, divide=False)
    source = modelled.summary if is_fixed else "measured"
    return replace(
        modelled,
        device=bench.engine.device,
        kernels=desirable,
        undivided=undivided,
        link=link,
        sources=modelled.sources | {"kernels": source, "link": link_source},
    )


def _modelled_kernels(
    bench: Bench, kernels: Sequence[Kernel], device: ModelledDevice, policy: str
) -> CostTable:
    """Return the modelled costs of kernels, in ms.

    On a GPU the model only orders the algorithms: its unit is the time of a sample, which the roofline of
    `device` gives.
    """
    table = modelled_table(bench, kernels, policy)
    if bench.engine.kind != "cudnn":
        return table
    rows = {}
    for kernel, own in table.measurements.items():
        unit = modelled_configurations(device, kernel, "undivided")[-1].time_ms / kernel.mini_batch
        rows[kernel] = [replace(row, time_ms=unit * (row.time_ms or 0)) for row in own]
    return replace(table, measurements=rows)


def _timed(choice: Configuration, rows: Sequence[Measurement]) -> Configuration:
    """Return a configuration with the times of these rows for its parts, where they have one."""
    measured = {(row.micro_batch, row.algorithm): part for row in rows if (part := row.part()) is not None}
    return Configuration(tuple(measured.get((p.micro_batch, p.algorithm), p) for p in choice.parts))
