"""The measurements to make: each task is a kernel, a micro-batch size and an algorithm."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mucudnn.problems.kernels import Kernel


@dataclass(frozen=True)
class Task:
    """A measurement to make, with the source of STOCK if `is_stock`, else with the engine."""

    kernel: Kernel
    micro_batch: int
    algorithm: str
    workspace: int
    notes: str
    is_stock: bool = False


@dataclass
class Worklist:
    """The measurements to make, and those that need too much memory.

    A race finds a choice within each of the `limits` and, with `undivided`, the best undivided algorithm to
    compare the choice with. With `again`, disturbed measurements that are due are made again. `memory` is the
    most bytes that measuring allocates at once.
    """

    tasks: list[Task] = field(default_factory=list)
    beyond_memory: list[Task] = field(default_factory=list)
    limits: Sequence[int | None] = (None,)
    undivided: bool = False
    again: bool = True
    memory: int = 0
