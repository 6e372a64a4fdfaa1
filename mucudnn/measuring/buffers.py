"""The memory that measuring takes: how much it may be, and the tensors in it."""

from dataclasses import dataclass

from mucudnn._native import Engine, Memory, Problem
from mucudnn.errors import MucudnnError
from mucudnn.problems.descriptor import short_text
from mucudnn.sizes import format_size


def memory_cap(engine: Engine) -> int:
    """Half of the device's memory that is available now, in bytes."""
    return engine.available_memory // 2


@dataclass(frozen=True)
class Extent:
    """Bytes of x, w, y and what the epilogue reads for a number of samples."""

    samples: int
    x: int
    w: int
    y: int
    operands: tuple[int, ...]

    @property
    def total(self) -> int:
        """Bytes of all together."""
        return self.x + self.w + self.y + sum(self.operands)


def extent(problem: Problem, at_least: int = 0) -> Extent:
    """Of the mini-batch, or of as many samples more as make `at_least` bytes of x and y."""
    size, batch = problem.element_size, problem.mini_batch
    sample = (problem.x_elements + problem.y_elements) // batch * size
    wide = problem.replace(mini_batch=max(batch, -(-at_least // sample)))
    operands = tuple(elements * size for elements in wide.operand_elements)
    x, w, y = (elements * size for elements in (wide.x_elements, wide.w_elements, wide.y_elements))
    return Extent(wide.mini_batch, x, w, y, operands)


def measuring_extent(problem: Problem, cap: int, bytes_beyond_caches: int) -> Extent:
    """Return the tensors that the slices of a problem rotate through, larger than the caches if `cap` allows.

    Raises MucudnnError where the mini-batch does not fit.
    """
    whole = extent(problem)
    if whole.total > cap:
        one = extent(problem.replace(mini_batch=1))
        more = extent(problem.replace(mini_batch=2)).total - one.total  # bytes that each further sample takes
        samples = (cap - one.total) // more + 1
        advice = (
            f"try --batch {1 << (samples.bit_length() - 1)}" if samples >= 1 else "not even one sample fits"
        )
        raise MucudnnError(
            f"{short_text(problem)}: its tensors take {format_size(whole.total)}, and half of the memory "
            f"available is {format_size(cap)}: {advice}"
        )
    wide = extent(problem, bytes_beyond_caches)
    return wide if wide.total <= cap else whole


@dataclass(frozen=True)
class Tensors:
    """x, w, y and what the epilogue reads in an engine's memory."""

    x: Memory
    w: Memory
    y: Memory
    operands: tuple[Memory, ...] = ()

    @classmethod
    def random(cls, engine: Engine, problem: Problem, size: Extent) -> "Tensors":
        """Allocated, and filled with values in [-0.5, 0.5), the same every time."""
        tensors = cls.allocated(engine, size)
        for seed, memory in enumerate(tensors.all, 1):
            memory.fill_random(problem.data_type, memory.size // problem.element_size, seed)
        return tensors

    @classmethod
    def allocated(cls, engine: Engine, size: Extent) -> "Tensors":
        """Allocated, with whatever values."""
        x, w, y, *operands = (engine.allocate(n) for n in (size.x, size.w, size.y, *size.operands))
        return cls(x, w, y, tuple(operands))

    @property
    def all(self) -> tuple[Memory, ...]:
        """In the order of an Extent."""
        return (self.x, self.w, self.y, *self.operands)


def allocate_workspace(engine: Engine, size: int) -> Memory | None:
    """None for no bytes."""
    return engine.allocate(size) if size else None
