"""The memory of a measurement: the size of its tensors, and the tensors themselves."""

from dataclasses import dataclass

from mucudnn._native import Engine, Memory, Problem, samples_to_time
from mucudnn.errors import MucudnnError
from mucudnn.problems.descriptor import short_text
from mucudnn.sizes import format_size


@dataclass(frozen=True)
class Extent:
    """The bytes of x, w, y and the epilogue's operands for a number of samples."""

    samples: int
    x: int
    w: int
    y: int
    operands: tuple[int, ...]

    @property
    def total(self) -> int:
        """The bytes of all tensors together."""
        return self.x + self.w + self.y + sum(self.operands)


def extent(problem: Problem) -> Extent:
    """Return the extent of the mini-batch."""
    size = problem.element_size
    operands = tuple(elements * size for elements in problem.operand_elements)
    y = problem.y_elements * problem.y_element_size
    return Extent(problem.mini_batch, problem.x_elements * size, problem.w_elements * size, y, operands)


def measuring_extent(problem: Problem, cap: int, bytes_beyond_caches: int) -> Extent:
    """Return the extent of the tensors to time a problem's slices on, within `cap` bytes.

    Where `cap` allows, they hold more samples than the mini-batch: see samples_to_time in
    native/cudnn/tuning/kernel_timer.hpp. Raises MucudnnError if even the mini-batch exceeds `cap`.
    """
    whole = extent(problem)
    if whole.total > cap:
        single = extent(problem.replace(mini_batch=1))
        more = extent(problem.replace(mini_batch=2)).total - single.total  # bytes of each further sample
        samples = (cap - single.total) // more + 1
        advice = (
            f"try --batch {1 << (samples.bit_length() - 1)}" if samples >= 1 else "not even one sample fits"
        )
        raise MucudnnError(
            f"{short_text(problem)}: the tensors take {format_size(whole.total)}, but half of the available "
            f"memory is {format_size(cap)}: {advice}"
        )
    return extent(problem.replace(mini_batch=samples_to_time(problem, cap, bytes_beyond_caches)))


@dataclass(frozen=True)
class Tensors:
    """Tensors x, w, y and the epilogue's operands in an engine's memory."""

    x: Memory
    w: Memory
    y: Memory
    operands: tuple[Memory, ...] = ()

    @classmethod
    def random(cls, engine: Engine, problem: Problem, size: Extent) -> "Tensors":
        """Allocate tensors and fill them with values in [-0.5, 0.5), the same in every run."""
        tensors = cls.allocated(engine, size)
        for seed, memory in enumerate(tensors.all, 1):
            memory.fill_random(problem.data_type, memory.size // problem.element_size, seed)
        return tensors

    @classmethod
    def allocated(cls, engine: Engine, size: Extent) -> "Tensors":
        """Allocate uninitialised tensors."""
        x, w, y, *operands = (engine.allocate(n) for n in (size.x, size.w, size.y, *size.operands))
        return cls(x, w, y, tuple(operands))

    @property
    def all(self) -> tuple[Memory, ...]:
        """All tensors, in the order of an Extent: x, w, y, operands."""
        return (self.x, self.w, self.y, *self.operands)


def allocate_workspace(engine: Engine, size: int) -> Memory | None:
    """Allocate `size` bytes of workspace; return None if `size` is 0."""
    return engine.allocate(size) if size else None
