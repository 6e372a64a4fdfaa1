"""Kernels: a convolution in one pass."""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from mucudnn._native import Problem
from mucudnn.problems.descriptor import short_text

PASSES = ("forward", "backward_data", "backward_filter")
DEFAULT_BATCH = 64


@dataclass(frozen=True)
class Kernel:
    """A problem in one pass: the key of measurements and decisions.

    A network gives a kernel its `name` and the `count` of its occurrences, which equality ignores.
    """

    problem: Problem
    pass_: str
    name: str = field(default="", compare=False)
    count: int = field(default=1, compare=False)

    @property
    def mini_batch(self) -> int:
        """The mini-batch of the problem."""
        return self.problem.mini_batch

    def at(self, mini_batch: int) -> "Kernel":
        """Return the kernel with another mini-batch."""
        return replace(self, problem=self.problem.replace(mini_batch=mini_batch))

    @property
    def label(self) -> str:
        """The name, or the short descriptor if the kernel has no name."""
        return self.name or short_text(self.problem)

    def __str__(self) -> str:
        return f"{self.label} {self.pass_}"


def merge_kernels(kernels: Iterable[Kernel]) -> list[Kernel]:
    """Return the kernels with identical ones merged into the first of them, with the sum of their counts."""
    merged: dict[Kernel, Kernel] = {}
    for kernel in kernels:
        first = merged.get(kernel)
        merged[kernel] = kernel if first is None else replace(first, count=first.count + kernel.count)
    return list(merged.values())
