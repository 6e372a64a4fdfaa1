"""The records of the cache: machines, algorithms, measurements, and comparisons of whole runs."""

from dataclasses import dataclass
from typing import NamedTuple

from mucudnn._native import STRIDED
from mucudnn.codec import Count, Measured, Positive
from mucudnn.solver import MicroConfiguration, is_tiled

SUCCESS = "CUDNN_STATUS_SUCCESS"
# The status of an algorithm that is predicted to be too slow for the kernel's mini-batch to be measured. Its
# workspace is that of a far faster algorithm: within a smaller limit the prediction does not hold.
UNLIKELY = "unlikely"
PLANNING = "planned"  # the engine of a machine on which nothing is measured
RECORDED = "recorded"  # the engine of a machine whose times another project recorded
FRAMEWORK = "framework"  # the engine of a machine that has the rows of STOCK and STOCK_SLICE
# STOCK is the framework's own operator. A row of STOCK is one undivided call. A row of STOCK_SLICE is a call
# for one slice, with the copy or the sum that puts its result into place.
STOCK, STOCK_SLICE = "STOCK", "STOCK_SLICE"
# This note marks a measurement that a race made in few runs. `--thorough` replaces the measurement.
RACED = "raced"
DETERMINISTIC = "deterministic"  # the note of an algorithm that gives the same bits in each run


@dataclass(frozen=True)
class Machine:
    """The engine and device that measurements hold for."""

    engine: str
    device: str
    library: str
    threads: Positive

    @property
    def note_on_times(self) -> str:
        """A sentence about times that another project recorded, or an empty text for a machine's own."""
        if self.engine != RECORDED:
            return ""
        return (
            "All times are sums of recorded ones, each measured once. A sum is not a whole run: it has no "
            "gaps between launches and no cold caches."
        )

    @property
    def identity(self) -> tuple[str, str, int]:
        """The values that tell machines apart."""
        return self.device, self.library, self.threads

    def __str__(self) -> str:
        plural = "" if self.threads == 1 else "s"
        return f"{self.device}, {self.library}, {self.threads} thread{plural}"


@dataclass(frozen=True)
class Measurement:
    """One algorithm of a kernel at one micro-batch size, measured or failed with a status.

    `time_ms` is the estimated time of an undisturbed run. `wall_ms` is the wall time and `cpu_ms` the CPU
    time of all threads together, which is None on a GPU: see native/cudnn/tuning/estimate.hpp. `busy_tries`
    is 0 if enough runs were undisturbed. Otherwise it counts the measurements, this one included, that found
    the machine busy.
    """

    micro_batch: Positive
    algorithm: str
    status: str
    workspace: Count
    notes: str = ""
    time_ms: Measured | None = None
    wall_ms: Measured | None = None
    cpu_ms: Measured | None = None
    busy_tries: Count = 0

    def is_undivided(self, mini_batch: int) -> bool:
        """Return whether the algorithm runs the whole mini-batch, and does not divide its samples."""
        return self.micro_batch == mini_batch and not is_tiled(self.algorithm)

    @property
    def is_raced(self) -> bool:
        """True if the measurement is from the few runs of a race."""
        return RACED in self.notes.split()

    @property
    def takes_strides(self) -> bool:
        """True if the algorithm takes x and y that are some channels of larger tensors."""
        return STRIDED in self.notes.split()

    def part(self) -> MicroConfiguration | None:
        """Return the micro-configuration, or None if the algorithm did not run."""
        if self.status != SUCCESS or self.time_ms is None:
            return None
        return MicroConfiguration(self.micro_batch, self.algorithm, self.time_ms, self.workspace)


class Listed(NamedTuple):
    """An algorithm that can run a kernel at some micro-batch size, measured or not."""

    algorithm: str
    workspace: int
    notes: str


@dataclass(frozen=True)
class Comparison:
    """The undivided and the divided configuration, run whole and interleaved.

    Values of the undivided configuration are None if nothing undivided fits the limit. Groups of channels are
    compared with a configuration whose channels are undivided, although it may divide the mini-batch.
    """

    undivided_ms: Measured | None
    divided_ms: Measured
    undivided_spread_ms: Measured | None
    divided_spread_ms: Measured

    @property
    def speedup(self) -> float | None:
        """The time of the undivided run divided by the time of the divided run."""
        return None if self.undivided_ms is None else self.undivided_ms / self.divided_ms


class StepUses(NamedTuple):
    """The uses of a step's times since they were measured or checked, and how many checks confirmed them."""

    uses: Count
    checks: Count
