"""The modelled times of a tile's operators: convolutions by their algorithms, others by a roofline."""

import math

import torch
from torch.fx import Node

from mucudnn._native import Problem
from mucudnn.arrays.call import LogListener
from mucudnn.measuring.bench import EngineBench
from mucudnn.measuring.modelled_costs import modelled_table
from mucudnn.measuring.modelled_device import (
    ModelledDevice,
    device_like,
    modelled_configurations,
    modelled_ms,
)
from mucudnn.measuring.runners import Exhaustive
from mucudnn.plans.decide import desirable_configurations
from mucudnn.problems.kernels import Kernel
from mucudnn.torch.operators.device_times import engine_of
from mucudnn.torch.streaming.nodes import bytes_of, shape_of
from mucudnn.torch.streaming.passes import Demand
from mucudnn.torch.tracing.recorder import DATA_TYPES
from mucudnn.torch.windows.boxes import Box, sizes

_OVERHEAD_MS = 0.05  # the least time of an operator
_HOST = ModelledDevice(
    "cpu", 1.2e11, {}, 8e9, 1e9, 0, "two cores of an AMD EPYC Milan, and their disk, as measured once"
)
_POLICY = "undivided"


class Costs:
    """The modelled times of operators on a device."""

    def __init__(self, device: ModelledDevice, bench: EngineBench | None = None) -> None:
        """Take algorithms of convolutions from the engine of a bench, or else from the modelled device."""
        self.device, self._bench = device, bench
        self._levels: dict[Problem, list[tuple[int, float]]] = {}

    def convolution(self, problem: Problem) -> list[tuple[int, float]]:
        """Return the time in ms by workspace in bytes: the least workspaces, ascending, and their times."""
        if problem not in self._levels:
            kernel = Kernel(problem, "forward")
            if self._bench is None:
                choices = modelled_configurations(self.device, kernel, _POLICY)
            else:
                rows = modelled_table(self._bench, [kernel], _POLICY).measurements[kernel]
                choices = tuple(desirable_configurations(rows, kernel))
            self._levels[problem] = [(each.workspace, each.time_ms) for each in choices]
        return self._levels[problem]

    def operator_ms(self, node: Node, demand: Demand) -> float:
        """Return the time in ms of an operator for a tile; of a convolution, that of padding its input."""
        its = demand.steps[node]
        moved = bytes_of(node, its.box or demand.boxes[node]) + sum(bytes_of(*each) for each in its.inputs)
        work = flops(node, demand)
        if its.problem is not None:
            box = its.inputs[0][1]
            is_padded = math.prod(its.problem.input) != math.prod(sizes(box)[2:])
            moved, work = 2 * bytes_of(*its.inputs[0]) * is_padded, 0
        elif is_view(node):
            moved = 0
        data_type = DATA_TYPES[node.meta["val"].dtype]
        return _OVERHEAD_MS + modelled_ms(self.device, int(work), moved, data_type)


def costs_of(device: torch.device) -> Costs:
    """Return the costs of a device that is present."""
    if device.type != "cpu":
        return Costs(device_like(torch.cuda.get_device_name(device)))
    return Costs(_HOST, EngineBench(engine_of("cpu"), LogListener(), Exhaustive(), deterministic=False))


def is_view(node: Node) -> bool:
    """Return whether a result lies in the memory of the first input."""
    [first, *_] = node.target._schema.returns
    return first.alias_info is not None or node.target is torch.ops.aten._unsafe_view.default


def bytes_inside(node: Node, demand: Demand) -> int:
    """Return the bytes that an operator allocates beside its result and a workspace."""
    name, inputs = str(node.target), demand.steps[node].inputs
    if "conv" in name:
        return bytes_of(*inputs[0])  # a padded or reordered copy
    if "attention" in name and (len(inputs[0][1]) != 4 or node.meta["val"].dtype == torch.float64):
        queries, keys = sizes(inputs[0][1])[:-1], sizes(inputs[1][1])[-2]
        return 2 * math.prod(queries) * keys * int(node.meta["val"].element_size())  # no fused kernel
    return 0


def flops(node: Node, demand: Demand) -> float:
    """Return the operations of a convolution, a product or attention, for the boxes of a tile."""
    name, inputs = node.target._schema.name.removeprefix("aten::"), demand.steps[node].inputs
    if name.startswith("conv"):
        box: Box = inputs[0][1] if "transpose" in name else demand.steps[node].box or demand.boxes[node]
        return 2.0 * math.prod(sizes(box)) * math.prod(shape_of(node.args[1])[1:])
    if name in ("linear", "mm", "bmm", "matmul"):
        return 2.0 * math.prod(sizes(demand.boxes[node])) * sizes(inputs[0][1])[-1]
    if "attention" in name:
        return 4.0 * math.prod(sizes(demand.boxes[node])) * sizes(inputs[1][1])[-2]
    return 0.0
