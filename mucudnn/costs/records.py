"""The records of the cache: machines, algorithms, measurements, and comparisons of whole runs."""

from dataclasses import dataclass
from typing import NamedTuple

from mucudnn._native import STRIDED
from mucudnn.solver import MicroConfiguration

SUCCESS = "CUDNN_STATUS_SUCCESS"
PLANNING = "planned"  # in the place of a machine's engine: nothing is measured on it
FRAMEWORK = "framework"  # in the place of a machine's engine: it has the rows of STOCK and STOCK_SLICE
# STOCK names what the caller's framework runs itself. A row of STOCK is one undivided call. A row of
# STOCK_SLICE is the call for one slice, with the copy or the sum that brings its result into place.
STOCK, STOCK_SLICE = "STOCK", "STOCK_SLICE"
# This note marks a measurement that a race made in few runs. `--thorough` replaces the measurement.
RACED = "raced"
CANNOT_ACCUMULATE = -1  # in the place of bytes: the device cannot sum slices outside of the output


@dataclass(frozen=True)
class Machine:
    """The place of a measurement. Times of one machine say nothing about another."""

    engine: str
    device: str
    library: str
    threads: int

    @property
    def identity(self) -> tuple[str, str, int]:
        """The values that tell machines apart."""
        return self.device, self.library, self.threads

    def __str__(self) -> str:
        plural = "" if self.threads == 1 else "s"
        return f"{self.device}, {self.library}, {self.threads} thread{plural}"


@dataclass(frozen=True)
class Measurement:
    """One algorithm of a kernel at one micro-batch size. Failures are kept too, with their status.

    `spread_ms` is the distance between the quartiles of the runs. `accumulator` is what a division needs
    beyond `workspace` when its slices cannot be summed in place, or CANNOT_ACCUMULATE.
    """

    micro_batch: int
    algorithm: str
    status: str
    workspace: int
    notes: str = ""
    median_ms: float | None = None
    spread_ms: float | None = None
    accumulator: int = 0

    @property
    def is_raced(self) -> bool:
        """True if a race made the measurement, in few runs."""
        return RACED in self.notes.split()

    @property
    def takes_strides(self) -> bool:
        """True if the algorithm takes x and y that are some channels of larger tensors."""
        return STRIDED in self.notes.split()

    def part(self) -> MicroConfiguration | None:
        """Return the micro-configuration, or None if the algorithm did not run."""
        if self.status != SUCCESS or self.median_ms is None:
            return None
        return MicroConfiguration(self.micro_batch, self.algorithm, self.median_ms, self.workspace)


class Listed(NamedTuple):
    """An algorithm that can run a kernel at some micro-batch size, measured or not."""

    algorithm: str
    workspace: int
    notes: str


@dataclass(frozen=True)
class Comparison:
    """The undivided and the divided configuration run whole, interleaved; errors are L2 against fp64.

    Values of the undivided configuration are None if nothing undivided fits the limit. Errors are None if the
    memory did not allow the reference.
    """

    undivided_ms: float | None
    divided_ms: float
    undivided_spread_ms: float | None
    divided_spread_ms: float
    error: float | None
    same_algorithms_error: float | None
    undivided_error: float | None

    @property
    def speedup(self) -> float | None:
        """The time of the undivided run over that of the divided one."""
        return None if self.undivided_ms is None else self.undivided_ms / self.divided_ms


@dataclass(frozen=True)
class StepTime:
    """The time of whole steps of a model, or of one call with its passes, in one of several ways to run them.

    `step` is the digest of all calls of convolutions in the step, or of the configurations of the passes.
    """

    step: str
    way: str
    time_ms: float


@dataclass(frozen=True)
class PartsComparison:
    """A kernel's tiles or channel groups, and its division of the mini-batch, run whole, interleaved.

    `tiles_ms` and `tiles_spread_ms` are those of the tiles or groups with their copies.
    """

    division_ms: float
    tiles_ms: float
    division_spread_ms: float
    tiles_spread_ms: float

    @property
    def speedup(self) -> float:
        """The time of the division over that of the tiles."""
        return self.division_ms / self.tiles_ms
