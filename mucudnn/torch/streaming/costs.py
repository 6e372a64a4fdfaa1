"""The modelled times of a tile's operators: convolutions by their algorithms, others by a roofline."""

import math
from functools import cache
from typing import NamedTuple

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
from mucudnn.torch.streaming.nodes import all_of, bytes_of, is_view, shape_of
from mucudnn.torch.streaming.rules import Step
from mucudnn.torch.tracing.recorder import DATA_TYPES
from mucudnn.torch.windows.boxes import Box, sizes

_OVERHEAD_MS = 0.05  # the least time of an operator
_HOST = ModelledDevice(
    "cpu", 1.2e11, {}, 8e9, 1e9, 0, "two cores of an AMD EPYC Milan, and their disk, as measured once"
)
_POLICY = "undivided"


class Cost(NamedTuple):
    """The time and the memory of an operator for a box of its result."""

    levels: list[tuple[int, float]]  # a convolution's workspaces, and the time in ms within each
    ms: float  # the time of all else
    flops: float
    size: int  # bytes of its result
    inside: int  # bytes that it allocates beside its result and a workspace


class Costs:
    """The modelled times of operators on a device."""

    def __init__(self, device: ModelledDevice, bench: EngineBench | None = None) -> None:
        """Take algorithms of convolutions from the engine of a bench, or else from the modelled device."""
        self.device, self._bench = device, bench
        self.copies = bench is None  # from and to where tensors are stored, while it computes
        self._levels = cache(self._find_levels)

    def _find_levels(self, problem: Problem) -> list[tuple[int, float]]:
        """Return the time in ms by workspace in bytes: the least workspaces, ascending, and their times."""
        kernel = Kernel(problem, "forward")
        if self._bench is None:
            choices = modelled_configurations(self.device, kernel, _POLICY)
        else:
            rows = modelled_table(self._bench, [kernel], _POLICY).measurements[kernel]
            choices = tuple(desirable_configurations(rows, kernel))
        return [(each.workspace, each.time_ms) for each in choices]

    def operator(self, node: Node, its: Step, box: Box) -> Cost:
        """Return what an operator takes for a box of its result."""
        size, work, levels = bytes_of(node, its.box or box), flops(node, its, box), [(0, 0.0)]
        moved = 0 if is_view(node) else size + sum(bytes_of(*each) for each in its.inputs)
        ms = modelled_ms(self.device, int(work), moved, DATA_TYPES[node.meta["val"].dtype])
        if its.problem is not None:
            levels = self._levels(its.problem)
            ms = modelled_ms(self.device, 0, 2 * bytes_of(*its.inputs[0]) * _is_padded(its), "f32")
        return Cost(levels, _OVERHEAD_MS + ms, work, size, _bytes_inside(node, its, box))


def costs_of(device: torch.device) -> Costs:
    """Return the costs of a device that is present."""
    if device.type != "cpu":
        return Costs(device_like(torch.cuda.get_device_name(device)))
    return Costs(_HOST, EngineBench(engine_of("cpu"), LogListener(), Exhaustive(), deterministic=False))


def _bytes_inside(node: Node, its: Step, box: Box) -> int:
    """Return the bytes that an operator allocates beside its result and a workspace."""
    name, (x, part) = str(node.target), its.inputs[0]
    if "conv" in name:  # the copy of a part, a padded one, or one in another order
        is_ready = x.op == "call_function" and not is_view(x) and part == all_of(x) and not _is_padded(its)
        return bytes_of(x, part) * (not is_ready)
    indices = 8 * math.prod(sizes(box)) * ("pool" in name)
    return bytes_of(x, part) + indices if "pool" in name or "pad" in name else 0


def _is_padded(its: Step) -> bool:
    return its.problem is not None and math.prod(its.problem.input) != math.prod(sizes(its.inputs[0][1])[2:])


def flops(node: Node, its: Step, box: Box) -> float:
    """Return the operations of a convolution, a product or attention, for a box of its result."""
    name, inputs = node.target._schema.name.removeprefix("aten::"), its.inputs
    if name.startswith("conv"):
        results: Box = inputs[0][1] if "transpose" in name else its.box or box
        return 2.0 * math.prod(sizes(results)) * math.prod(shape_of(node.args[1])[1:])
    if name in ("linear", "mm", "bmm", "matmul"):
        return 2.0 * math.prod(sizes(box)) * sizes(inputs[0][1])[-1]
    if "attention" in name:
        return 4.0 * math.prod(sizes(box)) * sizes(inputs[1][1])[-2]
    return 0.0
