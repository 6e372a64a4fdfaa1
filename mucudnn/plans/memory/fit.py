"""The memory that a training step takes without a plan, and the least that it takes with one."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import NamedTuple

from mucudnn.plans.memory.planning import count_trace
from mucudnn.plans.memory.traced import Trace
from mucudnn.plans.memory.training_step import Costs, Work, count_resident, count_work
from mucudnn.problems.network import Network
from mucudnn.problems.steps import Tensor
from mucudnn.solver.memory.floor import find_floor

OPTIMIZERS: dict[str, tuple[float | None, int]] = {
    "sgd": (0.0, 0), "momentum": (1.0, 0), "adam": (2.0, 1), "adamw": (2.0, 1),
    "adafactor": (None, 0), "adam8bit": (0.5, 0), "adamw8bit": (0.5, 0),
}  # fmt: skip
"""The fp32 copies of all parameters that an optimizer keeps, and those that its step allocates on a GPU.

None stands for Adafactor's factored second moments, whose size depends on the parameters' shapes. The state
of an optimizer in 8 bits is counted without the scales of its blocks.
"""


@dataclass(frozen=True)
class Fit:
    """The memory of a training step in bytes.

    Attributes:
        memory: the bytes of the device; None if they do not matter.
        peak: the most bytes at once without a plan.
        floor: the most bytes at once with the plan that needs the least.
        parts: the bytes of each kind at the peak: parameters, gradients, input, activations, workspace,
            optimizer, buckets (of DistributedDataParallel), context (of CUDA and its libraries) and rounding.
            They add up to `peak`.
    """

    memory: int | None
    peak: int
    floor: int
    parts: Mapping[str, int]

    @property
    def fits(self) -> bool:
        """True if the step fits the memory without a plan."""
        return self.memory is None or self.peak <= self.memory

    @property
    def fits_with_plan(self) -> bool:
        """True if the step fits the memory with a plan."""
        return self.memory is None or self.floor <= self.memory


class OptimizerBytes(NamedTuple):
    """The bytes of an optimizer's state, and the most that its step takes beside it."""

    state: int = 0
    scratch: int = 0


class Surroundings(NamedTuple):
    """The memory that a training step shares the device with, in bytes.

    `accumulates` says that the gradients of earlier steps are in memory when the step begins.
    """

    optimizer: OptimizerBytes = OptimizerBytes()
    context: int = 0
    buckets: int = 0
    accumulates: bool = False


def fit_trace(
    trace: Trace, costs: Costs, *, memory: int | None, surroundings: Surroundings, block: int
) -> Fit:
    """Return the memory of a traced model, whose tensors the allocator rounds up to whole blocks."""
    work = count_trace(trace, costs, None)
    return _fit(trace.network, work, costs, memory, surroundings, block, trace.held)


def fit_network(network: Network, costs: Costs, *, memory: int, surroundings: Surroundings) -> Fit:
    """Return the memory of a network that was not traced. Raises UsageError without backward steps."""
    return _fit(network, count_work(network, costs), costs, memory, surroundings, 1, {})


def name_optimizer(name: str, parameters: Sequence[Tensor]) -> OptimizerBytes:
    """Return the bytes of an optimizer in `OPTIMIZERS`, for trained parameters or their gradients."""
    states, scratch = OPTIMIZERS[name]
    if states is None:
        return _count_adafactor(parameters)
    size = sum(parameter.bytes for parameter in parameters)
    return OptimizerBytes(int(states * size), scratch * size)


def _count_adafactor(parameters: Sequence[Tensor]) -> OptimizerBytes:
    """Return the bytes of Adafactor, which keeps a row and a column of second moments for each matrix.

    Of a vector it keeps all second moments. The step computes the update of a parameter while that of the
    previous one is still in memory.
    """
    state = 0
    for parameter in parameters:
        shape, size = parameter.shape, parameter.bytes
        is_factored = len(shape) > 1 and size > 0
        state += size // shape[-1] + size // shape[-2] if is_factored else size
    sizes = [0, *(parameter.bytes for parameter in parameters)]
    return OptimizerBytes(state, max(map(sum, pairwise(sizes)), default=0))


def _fit(
    network: Network,
    work: Work,
    costs: Costs,
    memory: int | None,
    surroundings: Surroundings,
    block: int,
    held: Mapping[str, int],
) -> Fit:
    optimizer = surroundings.optimizer
    earlier = _earlier_gradients(network) if surroundings.accumulates else [0] * len(network.steps)
    parts = _parts(network, costs, block, held, earlier)
    steps = tuple(
        replace(step, fixed=step.fixed + size) for step, size in zip(work.numbers.steps, earlier, strict=True)
    )
    floor, _ = find_floor(replace(work.numbers, steps=steps))
    at_end = _parts_at_end(network, block)
    update = sum(at_end.values()) + optimizer.scratch
    if update > sum(parts.values()):  # the optimizer's step takes more than the backward pass
        parts = {**dict.fromkeys(parts, 0), **at_end, "optimizer": optimizer.scratch}
    parts["optimizer"] += optimizer.state
    parts |= {"buckets": surroundings.buckets, "context": surroundings.context}
    always = optimizer.state + surroundings.buckets + surroundings.context
    return Fit(memory, sum(parts.values()), max(floor, update) + always, parts)


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
    network: Network, costs: Costs, block: int, held: Mapping[str, int], earlier: Sequence[int]
) -> dict[str, int]:
    """Return the bytes of each kind at the step that takes the most."""
    resident = [
        now + before for now, before in zip(count_resident(network, block, held), earlier, strict=True)
    ]
    workspace = [
        max((costs.undivided[kernel].workspace for kernel in step.kernels), default=0)
        for step in network.steps
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


def _parts_at_end(network: Network, block: int) -> dict[str, int]:
    """Return the bytes in memory during the optimizer's step by kind; buffers count as activations."""
    names = {"parameter": "parameters", "gradient": "gradients", "input": "input", "buffer": "activations"}
    last = len(network.steps) - 1
    parts = dict.fromkeys((*names.values(), "rounding"), 0)
    for tensor in network.tensors:
        is_held = tensor.kind != "input" or last in network.lifetimes[tensor.name].alive
        if tensor.kind in names and is_held:
            parts[names[tensor.kind]] += tensor.bytes
            parts["rounding"] += -tensor.bytes % block
    return parts


def _bytes_of(network: Network, kind: str, step: int) -> int:
    """Return the bytes of the tensors of a kind that are in memory during a step."""
    tensors = (tensor for tensor in network.tensors if tensor.kind == kind)
    return sum(t.bytes for t in tensors if step in network.lifetimes[t.name].alive)


def largest(fits: Callable[[int], bool], guess: int = 1) -> int:
    """Return the largest number for which `fits` is true, or 0; it must be true for all smaller ones.

    The search begins at the guess, and takes few calls if that is near.
    """
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
