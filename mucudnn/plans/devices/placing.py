"""The placement of a network's operations on several devices, with modelled or measured costs."""

from dataclasses import dataclass

from mucudnn.errors import NothingFitsError
from mucudnn.plans.memory.training_step import Costs, time_of_step
from mucudnn.problems.network import Network
from mucudnn.problems.steps import Step
from mucudnn.solver import Infeasible
from mucudnn.solver.devices.pipelines import PeerLink
from mucudnn.solver.devices.placement import Placement, place_chains
from mucudnn.solver.devices.placement_graph import Operation


@dataclass(frozen=True)
class PlacedNetwork:
    """A network's forward steps on devices. Each backward step runs where its forward step runs.

    Attributes:
        steps: the names of the forward steps.
        operations: their costs, forward and backward together.
        placement: the device and the start of each operation.
        one_device_ms: the time of all operations on one device.
    """

    steps: tuple[str, ...]
    operations: tuple[Operation, ...]
    placement: Placement
    one_device_ms: float

    @property
    def speedup(self) -> float:
        """The speed over one device: SU^M of the projection."""
        return self.one_device_ms / self.placement.time_ms if self.placement.time_ms else 1.0


def place_network(
    network: Network,
    costs: Costs,
    devices: int,
    link: PeerLink,
    memory: int | None,
) -> PlacedNetwork:
    """Place the forward steps of a training step on equal devices, each with its backward step.

    A tensor that goes to another device comes back as a gradient, so that it costs two transfers. A device
    holds the weights of its steps, their gradients, and the tensors that its steps save. Steps without a
    branch between them stay together, which is much faster to solve.

    Args:
        network: a training step.
        costs: the costs of its kernels and other steps.
        devices: the number of devices.
        link: the connection between two devices.
        memory: the most bytes on each device; None for no limit.

    Raises:
        NothingFitsError: the network does not fit the devices' memory.
    """
    forward = network.steps[: network.turn]
    backward: dict[str, list[Step]] = {}
    for step in network.steps[network.turn :]:
        backward.setdefault(step.backward_of, []).append(step)
    counted: set[str] = set()
    operations = []
    for step in forward:
        work = [step, *backward.get(step.name, [])]
        names = [name for name in (*step.reads, *step.saves) if name not in counted]
        counted.update(names)
        weights = sum(2 * network.tensor(n).bytes for n in names if network.tensor(n).kind == "parameter")
        saved = sum(network.tensor(n).bytes for n in names if n in step.saves)
        operations.append(Operation(sum(time_of(network, each, costs) for each in work), weights + saved))
    edges: dict[tuple[int, int], float] = {}
    for reader, step in enumerate(forward):
        for name in step.reads:
            writer = network.lifetimes[name].produced_at
            if writer is not None:
                copied_ms = 2 * link.milliseconds(network.tensor(name).bytes)
                edges[writer, reader] = edges.get((writer, reader), 0.0) + copied_ms
    try:
        placement = place_chains(operations, edges, devices, memory)
    except Infeasible as error:
        raise NothingFitsError(str(error)) from None
    alone = sum(operation.time_ms for operation in operations)
    return PlacedNetwork(tuple(step.name for step in forward), tuple(operations), placement, alone)


def time_of(network: Network, step: Step, costs: Costs) -> float:
    """Return the milliseconds of a step, with its kernels undivided."""
    kernels_ms = sum(kernel.count * costs.undivided[kernel].time_ms for kernel in step.kernels)
    return kernels_ms + time_of_step(network, step, costs)
