"""The memory that a training step or an inference takes without a plan, and the least with one."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from mucudnn.output.table import Tabular
from mucudnn.plans.memory.allocations import Update, find_lives, list_events
from mucudnn.plans.memory.allocator import FREE, Event, count_reserved, find_least
from mucudnn.plans.memory.planning import ALIGNMENT
from mucudnn.plans.memory.training_step import Costs, count_resident, count_work
from mucudnn.problems.network import Network
from mucudnn.problems.steps import Tensor
from mucudnn.sizes import format_size, round_up
from mucudnn.solver.memory.floor import find_floor
from mucudnn.solver.memory.simulation import KEEP, Simulator
from mucudnn.solver.memory.training import TrainingStep

OPTIMIZERS: dict[str, tuple[tuple[float, ...] | None, int]] = {
    "sgd": ((), 0), "momentum": ((1.0,), 0), "adam": ((1.0, 1.0), 1), "adamw": ((1.0, 1.0), 1),
    "adafactor": (None, 0), "adam8bit": ((0.25, 0.25), 0), "adamw8bit": ((0.25, 0.25), 0),
}  # fmt: skip
"""The tensors that an optimizer keeps for each parameter, relative to it, and those that its step allocates.

None stands for Adafactor's factored second moments, whose size depends on the parameters' shapes. The state
of an optimizer in 8 bits is counted without the scales of its blocks.
"""


@dataclass(frozen=True)
class Fit(Tabular):
    """The memory of a training step or an inference in bytes, shown as a table in text and in notebooks.

    Attributes:
        memory: the bytes of the device; None if they do not matter.
        peak: the least bytes of a device on which the step runs without a plan.
        floor: the same with the plan that needs the least.
        reserved: the bytes that PyTorch takes from this device without a plan, as nvidia-smi shows them. They
            are more than `peak` where the allocator may keep free memory.
        parts: the bytes of each kind at the peak: parameters, gradients, input, activations, workspace,
            optimizer, buckets (of DistributedDataParallel), context (of CUDA and its libraries), rounding
            and fragmentation (gaps that the allocator cannot return to CUDA). They add up to `peak`.
    """

    _heads = ("part", "memory")
    _figures = (False, True)
    memory: int | None
    peak: int
    floor: int
    reserved: int
    parts: Mapping[str, int]

    @property
    def fits(self) -> bool:
        """True if the step fits the memory without a plan."""
        return self.memory is None or self.peak <= self.memory

    @property
    def fits_with_plan(self) -> bool:
        """True if the step fits the memory with a plan."""
        return self.memory is None or self.floor <= self.memory

    def _rows(self) -> Iterator[tuple[str, str]]:
        totals = {"peak": self.peak, "reserved by PyTorch": self.reserved, "peak with a plan": self.floor}
        yield from ((name, format_size(size)) for name, size in {**self.parts, **totals}.items())

    def _sentences(self) -> Iterator[str]:
        if self.memory is not None:
            fits = "fits" if self.fits else "fits with a plan" if self.fits_with_plan else "does not fit"
            yield f"It {fits}: the device has {format_size(self.memory)}."


class Surroundings(NamedTuple):
    """The optimizer, and other uses of the memory that a training step shares.

    `accumulates` says that the gradients of earlier steps are in memory when the step begins.
    """

    optimizer: Update = Update()
    context: int = 0
    buckets: int = 0
    accumulates: bool = False


def name_optimizer(name: str, parameters: Sequence[Tensor]) -> Update:
    """Return the steps of an optimizer in `OPTIMIZERS`, for trained parameters or their gradients."""
    copies, scratch = OPTIMIZERS[name]
    if copies is None:
        return _list_adafactor(parameters)
    state = [
        (("state", number, copy), int(part * parameter.bytes))
        for number, parameter in enumerate(parameters)
        for copy, part in enumerate(copies)
    ]
    made = [(("scratch", number), scratch * parameter.bytes) for number, parameter in enumerate(parameters)]
    step = (*made, *((key, FREE) for key, _ in made))
    return Update((*state, *step), step)


def _list_adafactor(parameters: Sequence[Tensor]) -> Update:
    """Return the steps of Adafactor, which keeps a row and a column of second moments for each matrix.

    Of a vector it keeps all second moments. The step computes the update of a parameter while that of the
    previous one is still in memory.
    """
    state: list[Event] = []
    step: list[Event] = []
    for number, parameter in enumerate(parameters):
        shape, size = parameter.shape, parameter.bytes
        is_factored = len(shape) > 1 and size > 0
        moments = [size // shape[-1], size // shape[-2]] if is_factored else [size]
        state += [(("state", number, copy), each) for copy, each in enumerate(moments)]
        step += [(("scratch", number), size), (("scratch", number - 1), FREE)]
    step.append((("scratch", len(parameters) - 1), FREE))
    return Update((*state, *step), tuple(step))


def fit_network(
    network: Network,
    costs: Costs,
    *,
    memory: int | None,
    surroundings: Surroundings,
    held: Mapping[str, int] | None = None,
    tensors: Sequence[str] | None = None,
) -> Fit:
    """Return the memory of a network. `held` and `tensors` are as in `count_work`."""
    held = held or {}
    work = count_work(network, costs, tensors=tensors, block=ALIGNMENT, held=held)
    optimizer, accumulates = surroundings.optimizer, surroundings.accumulates
    earlier = _earlier_gradients(network) if accumulates else [0] * len(network.steps)
    workspace = [
        round_up(max((costs.undivided[kernel].workspace for kernel in step.kernels), default=0), ALIGNMENT)
        for step in network.steps
    ]
    parts = _parts(network, workspace, held, earlier)
    at_end = _optimizer_step_bytes(network)
    if sum(at_end.values()) + optimizer.scratch > sum(parts.values()):
        parts = {**dict.fromkeys(parts, 0), **at_end, "optimizer": optimizer.scratch}
    parts["optimizer"] += optimizer.state
    events = list_events(network, find_lives(network, held), workspace, optimizer, accumulates=accumulates)
    least = find_least(events)
    parts["fragmentation"] = least - sum(parts.values())
    parts |= {"buckets": surroundings.buckets, "context": surroundings.context}
    always = surroundings.buckets + surroundings.context
    reserved = count_reserved(events, math.inf if memory is None else memory - always)
    steps = tuple(
        replace(step, fixed=step.fixed + size) for step, size in zip(work.numbers.steps, earlier, strict=True)
    )
    floor = find_least(_list_least(network, replace(work.numbers, steps=steps), held, surroundings))
    return Fit(memory, least + always, min(floor, least) + always, reserved + always, parts)


def _list_least(
    network: Network, numbers: TrainingStep, held: Mapping[str, int], surroundings: Surroundings
) -> list[Event]:
    """Return what a training allocates and frees with the plan that needs the least memory."""
    _, codes = find_floor(numbers)
    simulator = Simulator(numbers)
    workspace = simulator.workspace(codes, np.array(numbers.least_workspace, dtype=np.int64)).tolist()
    gone, back = simulator.freed_from.tolist(), simulator.needing_steps(codes).tolist()
    away = {numbers.tensors[i].name: (gone[i], back[i]) for i in np.flatnonzero(codes != KEEP)}
    lives = find_lives(network, held, away)
    return list_events(
        network, lives, workspace, surroundings.optimizer, accumulates=surroundings.accumulates
    )


def _earlier_gradients(network: Network) -> list[int]:
    """Return the bytes that gradients of earlier steps take beside this step's, during each step.

    A gradient is added to the earlier one as soon as it is there, and both exist during its own step.
    """
    sizes = [
        (network.lifetimes[t.name].alive.start, t.bytes) for t in network.tensors if t.kind == "gradient"
    ]
    earlier = [sum(size for _, size in sizes)] * len(network.steps)
    for begin, size in sizes:
        for step in range(begin + 1, len(earlier)):
            earlier[step] -= size
    return earlier


def _parts(
    network: Network, workspace: Sequence[int], held: Mapping[str, int], earlier: Sequence[int]
) -> dict[str, int]:
    """Return the bytes of each kind at the step that takes the most."""
    resident = [
        now + before for now, before in zip(count_resident(network, ALIGNMENT, held), earlier, strict=True)
    ]
    place = max(range(len(resident)), key=lambda step: resident[step] + workspace[step])
    exact = count_resident(network, 1, held)[place] + earlier[place]
    kinds = {
        "parameters": _bytes_of(network, "parameter", place),
        "gradients": _bytes_of(network, "gradient", place) + earlier[place],
        "input": _bytes_of(network, "input", place),
    }
    return {
        **kinds,
        "activations": exact - sum(kinds.values()),
        "workspace": workspace[place],
        "optimizer": 0,
        "rounding": resident[place] - exact,
    }


def _optimizer_step_bytes(network: Network) -> dict[str, int]:
    """Return the bytes in memory during the optimizer's step by kind; buffers count as activations."""
    names = {"parameter": "parameters", "gradient": "gradients", "input": "input", "buffer": "activations"}
    last = len(network.steps) - 1
    parts = dict.fromkeys((*names.values(), "rounding"), 0)
    for tensor in network.tensors:
        is_held = tensor.kind != "input" or last in network.lifetimes[tensor.name].alive
        if tensor.kind in names and is_held:
            parts[names[tensor.kind]] += tensor.bytes
            parts["rounding"] += -tensor.bytes % ALIGNMENT
    return parts


def _bytes_of(network: Network, kind: str, step: int) -> int:
    """Return the bytes of the tensors of a kind that are in memory during a step."""
    tensors = (tensor for tensor in network.tensors if tensor.kind == kind)
    return sum(t.bytes for t in tensors if step in network.lifetimes[t.name].alive)
