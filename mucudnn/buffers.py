"""The memory that measuring takes: how much it may be, and the tensors in it."""

from dataclasses import dataclass

from mucudnn._native import Engine, Memory, Problem
from mucudnn.descriptor import short_text
from mucudnn.errors import MucudnnError
from mucudnn.sizes import format_size

# Slices rotate through this much of x and y, so that no slice is found in a cache.
ROTATION = 64 * 2**20


def memory_cap(engine: Engine) -> int:
    """Half of the device's memory that is available now, in bytes."""
    return engine.available_memory // 2


@dataclass(frozen=True)
class Extent:
    """Bytes of x, w and y for a number of samples."""

    samples: int
    x: int
    w: int
    y: int

    @property
    def total(self) -> int:
        """Bytes of the three together."""
        return self.x + self.w + self.y


def extent(problem: Problem, at_least: int = 0) -> Extent:
    """Of the mini-batch, or of as many samples more as make `at_least` bytes of x and y."""
    size, batch = problem.element_size, problem.mini_batch
    x, y = problem.x_elements // batch * size, problem.y_elements // batch * size
    samples = max(batch, -(-at_least // (x + y)))
    return Extent(samples, samples * x, problem.w_elements * size, samples * y)


def measuring_extent(problem: Problem, cap: int) -> Extent:
    """What the slices of a problem rotate through. Raises MucudnnError where the mini-batch does not fit."""
    whole = extent(problem)
    if whole.total > cap:
        one = extent(problem.replace(mini_batch=1))
        samples = (cap - one.w) // (one.x + one.y)
        advice = (
            f"try --batch {1 << (samples.bit_length() - 1)}" if samples >= 1 else "not even one sample fits"
        )
        raise MucudnnError(
            f"{short_text(problem)}: x, w and y take {format_size(whole.total)}, and half of the memory "
            f"available is {format_size(cap)}: {advice}"
        )
    wide = extent(problem, ROTATION)
    return wide if wide.total <= cap else whole


@dataclass(frozen=True)
class Tensors:
    """x, w and y in an engine's memory."""

    x: Memory
    w: Memory
    y: Memory

    @classmethod
    def random(cls, engine: Engine, problem: Problem, size: Extent) -> "Tensors":
        """Allocated, and filled with values in [-0.5, 0.5), the same every time."""
        memories = [engine.allocate(n) for n in (size.x, size.w, size.y)]
        for seed, memory in enumerate(memories, 1):
            memory.fill_random(problem.data_type, memory.size // problem.element_size, seed)
        return cls(*memories)


def allocate_workspace(engine: Engine, size: int) -> Memory | None:
    """None for no bytes."""
    return engine.allocate(size) if size else None
