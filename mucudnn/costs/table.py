"""The table of costs: all that decisions know about measurements."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mucudnn.costs.cache import Cache
from mucudnn.costs.records import RECORDED, Machine, Measurement
from mucudnn.errors import MucudnnError
from mucudnn.problems.kernels import Kernel


@dataclass(frozen=True)
class CostTable:
    """The costs of kernels on one machine: (kernel, micro-batch size, algorithm) → time, workspace."""

    machine: Machine
    measurements: Mapping[Kernel, Sequence[Measurement]]
    complete: bool = True  # False if a race dropped candidates, or others recorded only some sizes

    @classmethod
    def read(cls, cache: Cache, machine: Machine, kernels: Iterable[Kernel]) -> "CostTable":
        """Return the costs of these kernels in a cache, at all micro-batch sizes."""
        rows = {kernel: cache.measurements(machine, kernel) for kernel in kernels}
        return cls(machine, rows, machine.engine != RECORDED)

    def at_sizes(self, kernel: Kernel, sizes: Sequence[int]) -> list[Measurement]:
        """Return a kernel's costs at these micro-batch sizes.

        Raises MucudnnError if a size has none, unless the table is incomplete or a race skipped the size.
        """
        rows = self.measurements[kernel]
        missing = sorted(set(sizes) - {row.micro_batch for row in rows})
        if missing and self.complete and not any(row.is_raced for row in rows):
            raise MucudnnError(
                f"{kernel}: nothing was measured at micro-batch {', '.join(map(str, missing))}"
            )
        return [row for row in rows if row.micro_batch in sizes]
