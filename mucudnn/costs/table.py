"""The table of costs: everything that the decisions see of measuring."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mucudnn.costs.cache import Cache
from mucudnn.costs.records import Machine, Measurement
from mucudnn.errors import MucudnnError
from mucudnn.problems.kernels import Kernel


@dataclass(frozen=True)
class CostTable:
    """The costs of kernels on one machine: (kernel, micro-batch size, algorithm) → time, workspace."""

    machine: Machine
    measurements: Mapping[Kernel, Sequence[Measurement]]
    complete: bool = True  # False if candidates that are out of the race were not measured

    @classmethod
    def read(cls, cache: Cache, machine: Machine, kernels: Iterable[Kernel]) -> "CostTable":
        """Return the costs that a cache has of these kernels, at all micro-batch sizes."""
        return cls(machine, {kernel: cache.measurements(machine, kernel) for kernel in kernels})

    def at_sizes(self, kernel: Kernel, sizes: Sequence[int]) -> list[Measurement]:
        """Return a kernel's costs at these micro-batch sizes.

        Raises MucudnnError if a size has none, though the table is complete. A race leaves sizes out.
        """
        rows = self.measurements[kernel]
        missing = sorted(set(sizes) - {row.micro_batch for row in rows})
        if missing and self.complete and not any(row.is_raced for row in rows):
            raise MucudnnError(
                f"{kernel}: nothing was measured at micro-batch {', '.join(map(str, missing))}"
            )
        return [row for row in rows if row.micro_batch in sizes]
