"""The measurements to make: tasks of one kernel, micro-batch size and algorithm each."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from mucudnn.problems.kernels import Kernel


@dataclass(frozen=True)
class Task:
    """One measurement to make, by the source of STOCK if `is_stock`, else by the engine."""

    kernel: Kernel
    micro_batch: int
    algorithm: str
    workspace: int
    notes: str
    is_stock: bool = False


@dataclass
class Worklist:
    """The measurements to make, and those that need too much memory.

    A race finds a choice within each of the `limits`. With `undivided` it also measures the best undivided
    algorithm, which the choice is compared with. `memory` is the most bytes that measuring allocates at once.
    """

    tasks: list[Task] = field(default_factory=list)
    beyond_memory: list[Task] = field(default_factory=list)
    limits: Sequence[int | None] = (None,)
    undivided: bool = False
    memory: int = 0
