"""Training steps of small random networks, and a simulation of one in ticks of a millisecond."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from hypothesis import strategies as st

from mucudnn.solver import Configuration, MicroConfiguration
from mucudnn.solver.memory.copies import Link
from mucudnn.solver.memory.floor import find_floor
from mucudnn.solver.memory.simulation import Simulator, encode
from mucudnn.solver.memory.training import (
    Choice,
    KernelChoice,
    Replay,
    SavedTensor,
    StepCost,
    TrainingStep,
)


def configuration(time_ms: float, workspace: int) -> Configuration:
    return Configuration((MicroConfiguration(1, "A", time_ms, workspace),))


def chain(sizes: Sequence[int], replays: Sequence[float | None] | None = None) -> tuple[SavedTensor, ...]:
    """Return the tensors of a chain: step i writes tensor i, step i+1 and the mirrored steps read it.

    A tensor with a replay is recomputed from the one before it.
    """
    last = 2 * len(sizes)  # the forward steps 0 .. n, the backward steps n+1 .. 2n+1 of steps n .. 0
    return tuple(
        SavedTensor(
            f"t{i}",
            size,
            i,
            i + 1,
            last - i,
            last - i + 1,
            None
            if replays is None or replays[i] is None
            else Replay(replays[i] or 0.0, (i - 1,) if i else ()),
            is_kernel_input=i % 2 == 0,
        )
        for i, size in enumerate(sizes)
    )


@st.composite
def chains(draw: st.DrawFn, most: int = 5) -> TrainingStep:
    """Draw a chain with whole milliseconds and at a byte in a millisecond, out and in."""
    count = draw(st.integers(1, most))
    sizes = draw(st.lists(st.integers(0, 9), min_size=count, max_size=count))
    replays = draw(
        st.lists(st.one_of(st.none(), st.integers(0, 4).map(float)), min_size=count, max_size=count)
    )
    steps = tuple(
        StepCost(float(draw(st.integers(1, 6))), draw(st.integers(0, 3))) for _ in range(2 * count + 2)
    )
    kernels = []
    for step in range(2 * count + 2):
        if draw(st.booleans()):
            fast, more = draw(st.integers(0, 3)), draw(st.integers(1, 4))
            slower = configuration(float(fast + draw(st.integers(1, 4))), 0)
            kernels.append(KernelChoice(step, (slower, configuration(float(fast), more))))
    link = Link(1000, 1000, draw(st.integers(1, 10)))
    return TrainingStep(steps, chain(sizes, replays), tuple(kernels), link)


@st.composite
def with_replayed_kernels(draw: st.DrawFn, works: st.SearchStrategy[TrainingStep]) -> TrainingStep:
    """Draw a training step in which some replays run the kernels of the step that wrote their tensor."""
    work = draw(works)
    tensors = list(work.tensors)
    for i, tensor in enumerate(tensors):
        again = tuple(k for k, kernel in enumerate(work.kernels) if kernel.step == tensor.produced_at)
        if tensor.replay and again and draw(st.booleans()):
            tensors[i] = replace(tensor, replay=replace(tensor.replay, kernels=again))
    return replace(work, tensors=tuple(tensors))


@st.composite
def networks(draw: st.DrawFn) -> tuple[TrainingStep, int]:
    """Draw a training step with few kernels, and memory a little above its floor."""
    work = draw(chains(4))
    kernels = draw(st.permutations(work.kernels))[:4]
    link = replace(work.link, piece=1)
    work = draw(with_replayed_kernels(st.just(replace(work, kernels=tuple(kernels), link=link))))
    return work, find_floor(work)[0] + draw(st.integers(0, 15))


def required_bytes(work: TrainingStep, choices: Sequence[Choice], configurations: Sequence[int]) -> list[int]:
    """Return the bytes that each step needs if no copy is under way."""
    chosen = np.array(configurations, dtype=np.int64)
    required: list[int] = Simulator(work).profile(encode(choices), chosen).tolist()
    return required


def all_decisions(work: TrainingStep) -> list[tuple[tuple[Choice, ...], tuple[int, ...]]]:
    configurations = itertools.product(*(range(len(kernel.configurations)) for kernel in work.kernels))
    return list(itertools.product(valid_choices(work), configurations))


def valid_choices(work: TrainingStep) -> list[tuple[Choice, ...]]:
    """Return all choices that can run."""
    choices: list[tuple[Choice, ...]] = [()]
    for tensor in work.tensors:
        options: list[tuple[Choice, ...]] = []
        for before in choices:
            options += [(*before, "keep"), (*before, "offload")]
            if tensor.replay and all(before[source] != "recompute" for source in tensor.replay.sources):
                options.append((*before, "recompute"))
        choices = options
    return choices


@dataclass
class Ticks:
    """The results of `simulate_in_ticks`."""

    time_ms: int
    peak: int
    byte_ms: int
    exposed_ms: int


def simulate_in_ticks(
    steps: Sequence[StepCost],
    tensors: Sequence[SavedTensor],
    choices: Sequence[Choice],
    link: Link,
    memory: int,
    window: int,
) -> Ticks:
    """Simulate a training step millisecond by millisecond, at a byte in a millisecond, out and in."""
    offloaded = [i for i, choice in enumerate(choices) if choice == "offload"]
    time = [int(each.time_ms) for each in steps]
    transient = [each.fixed + each.workspace for each in steps]
    need = {i: tensor.first_backward_use for i, tensor in enumerate(tensors)}
    for tensor, choice in zip(tensors, choices, strict=True):
        if choice == "recompute":
            assert tensor.replay
            at = tensor.first_backward_use
            time[at] += int(tensor.replay.time_ms)
            transient[at] = steps[at].fixed + max(transient[at] - steps[at].fixed, tensor.replay.workspace)
            for source in tensor.replay.sources:
                need[source] = min(need[source], tensor.first_backward_use)
    out_done = dict.fromkeys(offloaded, 0)  # bytes, whole pieces
    in_done = dict.fromkeys(offloaded, 0)
    allocated = dict.fromkeys(offloaded, 0)
    step, left = 0, 0  # `left` is 0 while the step waits
    outgoing = incoming = None
    now = exposed = byte_ms = peak = 0

    def is_out(i: int) -> bool:
        return out_done[i] == tensors[i].bytes

    def lingering() -> int:
        total = 0
        for i in offloaded:
            if tensors[i].last_forward_use < step and not is_out(i):
                total += tensors[i].bytes
        return total

    def required(at: int, already: bool = True) -> int:
        """Sum the tensors that must be in memory at a step or that are back early."""
        total = transient[at]
        for i, tensor in enumerate(tensors):
            begin = tensor.produced_at
            if choices[i] == "keep":
                inside = begin <= at <= tensor.last_use
            else:
                inside = begin <= at <= tensor.last_forward_use or need[i] <= at <= tensor.last_use
            if inside:
                total += tensor.bytes
            elif i in offloaded and already and step <= at < need[i]:
                total += allocated[i]
        return total

    def in_memory() -> int:
        """Sum the bytes of all that is in memory now."""
        total = transient[step] if left else min(steps[max(step - 1, 0)].fixed, steps[step].fixed)
        for i, tensor in enumerate(tensors):
            written = step > tensor.produced_at or (step == tensor.produced_at and left)
            if choices[i] == "keep":
                total += tensor.bytes if written and step <= tensor.last_use else 0
                continue
            if written and step <= tensor.last_forward_use:
                total += tensor.bytes
            if choices[i] == "recompute":
                back = step > need[i] or (step == need[i] and left)
                total += tensor.bytes if back and step <= tensor.last_use else 0
            elif tensor.last_forward_use < step <= tensor.last_use:
                total += allocated[i]
        return total + lingering()

    while True:
        if not left:
            back = all(in_done[i] == tensors[i].bytes for i in offloaded if need[i] <= step)
            if back and required(step) + lingering() <= memory:
                left = time[step]
        if outgoing is None:
            ready = [i for i in offloaded if not is_out(i) and tensors[i].produced_at < step]
            if ready:
                first = min(ready, key=lambda i: (tensors[i].last_forward_use, i))
                size = min(link.piece, tensors[first].bytes - out_done[first])
                outgoing = [first, size, size]
        coming = [i for i in offloaded if in_done[i] < tensors[i].bytes]
        if incoming is None and coming:
            first = min(coming, key=lambda i: (need[i], i))
            size = min(link.piece, tensors[first].bytes - in_done[first])
            wanted = tensors[first].bytes - allocated[first]
            if is_out(first) and step > tensors[first].last_forward_use and step >= need[first] - window:
                here = required(step) + lingering() + (wanted if step < need[first] else 0)
                later = all(required(t) + wanted <= memory for t in range(step, need[first]))
                if not wanted or (here <= memory and later):
                    allocated[first] += wanted
                    incoming = [first, size, size]
        held = in_memory()
        assert held <= memory
        peak, byte_ms = max(peak, held), byte_ms + held
        exposed += not left
        now += 1
        assert now < 10_000
        if outgoing:
            outgoing[2] -= 1
            if not outgoing[2]:
                out_done[outgoing[0]] += outgoing[1]
                outgoing = None
        if incoming:
            incoming[2] -= 1
            if not incoming[2]:
                in_done[incoming[0]] += incoming[1]
                incoming = None
        if left:
            left -= 1
            if not left:
                step += 1
                if step == len(steps):
                    return Ticks(now, peak, byte_ms, exposed)
