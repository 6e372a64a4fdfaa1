"""The conversion of a network to the numbers that the memory planner of `solver` reads."""

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mucudnn.plans.memory.parts import LEAST_BYTES
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.network import Network
from mucudnn.problems.steps import Step, Tensor
from mucudnn.sizes import round_up
from mucudnn.solver import Configuration
from mucudnn.solver.memory.copies import Link
from mucudnn.solver.memory.training import Cost, KernelChoice, Replay, SavedTensor, StepCost, TrainingStep

StepTime = Callable[[int, int, str], float]
"""The milliseconds of a step from its operations, the bytes that it reads and writes, and its data type."""


@dataclass(frozen=True)
class Costs:
    """The costs of a network on a device.

    - `kernels`: each kernel's desirable set, and its fastest undivided configuration.
    - `step_ms`: the time of all other work.
    - `sources`: where the times of the kernels, the steps and the link come from, such as "measured",
      "modelled", or "calibrated on records of" a GPU.
    """

    device: str
    kernels: Mapping[Kernel, Sequence[Configuration]]
    undivided: Mapping[Kernel, Configuration]
    step_ms: StepTime
    link: Link
    sources: dict[str, str] = field(default_factory=dict)

    @property
    def summary(self) -> str:
        """Return where the times of the kernels come from; `sources` has the rest."""
        return self.sources.get("kernels", "modelled")


@dataclass(frozen=True)
class KernelPlace:
    """A kernel of the training step, and the step that runs it."""

    step: Step
    kernel: Kernel


@dataclass(frozen=True)
class Work:
    """A training step in numbers, with the network's tensor or kernel for each of its entries."""

    numbers: TrainingStep
    tensors: tuple[Tensor, ...]
    kernels: tuple[KernelPlace, ...]
    unlimited_ms: float


def count_work(
    network: Network,
    costs: Costs,
    *,
    tensors: Sequence[str] | None = None,
    replays: Mapping[str, tuple[Sequence[str], Sequence[str]]] | None = None,
    host_memory: int | None = None,
    least_bytes: int = LEAST_BYTES,
    block: int = 1,
    held: Mapping[str, int] | None = None,
) -> Work:
    """Return the training step of a network.

    Args:
        network: a network, which saves nothing if it has no backward steps.
        costs: what its kernels and steps cost.
        tensors: the tensors to manage, by default those that the network saves.
        replays: for each tensor that can be computed again, the steps that do so, and the saved tensors that
            they read. By default, these are all tensors whose steps read only saved tensors.
        host_memory: the most bytes of all offloaded tensors together.
        least_bytes: smaller tensors are not managed, unless `tensors` names them.
        block: the allocator rounds each tensor up to a multiple of this many bytes.
        held: for some tensors, the last step during which the program holds them, even if no step reads them.
    """
    if tensors is None:
        saved = [tensor for tensor in network.saved if tensor.bytes >= least_bytes]
    else:
        saved = [network.tensor(name) for name in tensors]
    step_ms = [time_of_step(network, step, costs) for step in network.steps]
    held = held or {}
    fixed = count_resident(network, block, held)
    counted: list[SavedTensor] = []
    index = {tensor.name: number for number, tensor in enumerate(saved)}
    turn = network.turn
    forward_steps = network.steps[:turn]
    inputs_of_kernels = {name for step in forward_steps if step.kernels for name in step.reads}
    for tensor in saved:
        lifetime = network.lifetimes[tensor.name]
        produced, last = lifetime.produced_at, lifetime.last_use
        forward, backward = lifetime.last_forward_use, lifetime.first_backward_use
        if forward is not None:
            forward = max(forward, held.get(tensor.name, 0))
        uses = (produced, forward, backward, last)
        if tensor.kind != "activation" or None in uses or forward >= backward:  # type: ignore[operator]
            # The planner cannot free this tensor between its uses, so the step's fixed bytes include it. Its
            # entry is dated at the turn because the solver finds the first backward step by these dates.
            counted.append(SavedTensor(tensor.name, 0, turn - 1, turn - 1, turn, turn))
            continue
        is_read = tensor.name in inputs_of_kernels
        size = round_up(tensor.bytes, block)
        managed = SavedTensor(tensor.name, size, *uses, is_kernel_input=is_read)  # type: ignore[arg-type]
        for step in range(managed.produced_at, managed.last_use + 1):
            fixed[step] -= size
        counted.append(managed)
    times = dict(zip((step.name for step in network.steps), step_ms, strict=True))
    places = [
        (number, KernelPlace(step, kernel))
        for number, step in enumerate(network.steps)
        for kernel in step.kernels
        for _ in range(kernel.count)
    ]
    kernels: dict[str, list[int]] = {}
    for k, (_, place) in enumerate(places):
        kernels.setdefault(place.step.name, []).append(k)
    ready = tuple(
        _add_replay(network, tensor, index, counted, times, kernels, replays) if tensor.bytes else tensor
        for tensor in counted
    )
    choices = {
        kernel: tuple(Cost(choice.time_ms, choice.workspace) for choice in configurations)
        for kernel, configurations in costs.kernels.items()
    }
    numbers = TrainingStep(
        tuple(StepCost(time_ms, size) for time_ms, size in zip(step_ms, fixed, strict=True)),
        ready,
        tuple(KernelChoice(number, choices[place.kernel]) for number, place in places),
        costs.link,
        host_memory,
    )
    unlimited = sum(step_ms) + sum(costs.undivided[place.kernel].time_ms for _, place in places)
    return Work(numbers, tuple(saved), tuple(place for _, place in places), unlimited)


def count_resident(network: Network, block: int, held: Mapping[str, int]) -> list[int]:
    """Return the bytes of all tensors in memory during each step, each rounded up to whole blocks."""
    change = [0] * (len(network.steps) + 1)
    for tensor in network.tensors:
        alive = network.lifetimes[tensor.name].alive
        stop = max(alive.stop, min(held.get(tensor.name, 0) + 1, len(network.steps)))
        change[alive.start] += round_up(tensor.bytes, block)
        change[stop] -= round_up(tensor.bytes, block)
    return list(itertools.accumulate(change[:-1]))


def time_of_step(network: Network, step: Step, costs: Costs) -> float:
    """Return the milliseconds of a step without its kernels."""
    if step.kernels:
        return 0.0
    used = [network.tensor(name) for name in (*step.reads, *step.writes)]
    largest = max(used, key=lambda tensor: tensor.bytes, default=None)
    data_type = "f32" if largest is None else largest.data_type
    return costs.step_ms(step.flops, sum(tensor.bytes for tensor in used), data_type)


def _add_replay(
    network: Network,
    saved: SavedTensor,
    index: Mapping[str, int],
    counted: Sequence[SavedTensor],
    times: Mapping[str, float],
    kernels: Mapping[str, Sequence[int]],
    replays: Mapping[str, tuple[Sequence[str], Sequence[str]]] | None,
) -> SavedTensor:
    """Return the tensor, with a replay if its sources are in memory when it is computed again."""
    if replays is None:
        recomputation = network.recomputation(saved.name)
        steps = list(recomputation.steps)
        sources = [tensor.name for tensor in recomputation.sources if tensor.kind == "activation"]
        if any(name not in index for name in sources):
            return saved
    elif saved.name in replays:
        names, read = replays[saved.name]
        steps = [network.step(name) for name in names]
        sources = list(read)
    else:
        return saved
    numbers = tuple(index[name] for name in sources)
    if any(not _is_back(counted[number], saved) for number in numbers):
        return saved
    time_ms = sum(times[step.name] for step in steps)
    again = tuple(k for step in steps for k in kernels.get(step.name, ()))
    written = [network.tensor(name) for step in steps for name in step.writes]
    overwritten = {tensor.in_place_of for tensor in written}
    between = sum(
        tensor.bytes
        for tensor in written
        if tensor.name not in overwritten and tensor.name != saved.name and tensor.kind == "activation"
    )
    return SavedTensor(
        saved.name, saved.bytes, saved.produced_at, saved.last_forward_use, saved.first_backward_use,
        saved.last_use, Replay(time_ms, numbers, between, again), saved.is_kernel_input,
    )  # fmt: skip


def _is_back(source: SavedTensor, saved: SavedTensor) -> bool:
    """Return whether a source can be in memory when a tensor is computed again."""
    return bool(source.bytes) and source.last_forward_use < saved.first_backward_use <= source.last_use
