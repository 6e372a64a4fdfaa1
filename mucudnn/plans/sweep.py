"""Sweeps: a kernel's time at many mini-batch sizes, undivided and divided, and the cliffs where it jumps."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from mucudnn.costs.records import Measurement
from mucudnn.errors import UsageError
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.plans.decide import fastest_configuration
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import micro_batch_sizes, usable_sizes
from mucudnn.solver import Configuration

JUMP = 1.3
NEIGHBOURS = 3
_LARGEST = 2**16


@dataclass(frozen=True)
class SweepPoint:
    """A mini-batch size with the best undivided algorithm and the best division within the limit.

    Either is None where nothing fits the limit. `spread_ms` is the distance between the quartiles of the
    undivided algorithm's times.
    """

    mini_batch: int
    undivided: Configuration | None
    divided: Configuration | None
    spread_ms: float = 0.0

    @property
    def per_sample(self) -> float | None:
        """Milliseconds of one sample, undivided."""
        return None if self.undivided is None else self.undivided.time_ms / self.mini_batch

    @property
    def least_per_sample(self) -> float | None:
        """Milliseconds of one sample, undivided, at about the lower quartile of the runs."""
        if self.undivided is None:
            return None
        return (self.undivided.time_ms - self.spread_ms / 2) / self.mini_batch

    @property
    def divided_per_sample(self) -> float | None:
        """Milliseconds of one sample, divided."""
        return None if self.divided is None else self.divided.time_ms / self.mini_batch


@dataclass(frozen=True)
class Cliff:
    """A size at which the time per sample jumps, and the size swept before it."""

    before: SweepPoint
    point: SweepPoint


@dataclass(frozen=True)
class Sweep:
    """One kernel at several mini-batch sizes, ascending."""

    kernel: Kernel
    limit: int | None
    points: tuple[SweepPoint, ...]

    @property
    def cliffs(self) -> list[Cliff]:
        """The cliffs of the undivided times: see `find_cliffs`."""
        return find_cliffs(self.points)


def parse_sizes(text: str) -> tuple[int, ...] | None:
    """Parse mini-batch sizes such as `1-64`, `8,16,32` or `1-8,16`, and return them in ascending order.

    Return None for `powers`. Raises UsageError.
    """
    if text == "powers":
        return None
    sizes: set[int] = set()
    for item in text.split(","):
        first, dash, last = item.strip().partition("-")
        ends = (first, last if dash else first)
        if not all(end.isascii() and end.isdigit() for end in ends):
            raise UsageError(f"'{text}' is not a list of sizes: give for example 1-64 or 8,16,32, or powers")
        low, high = map(int, ends)
        if not 1 <= low <= high <= _LARGEST:
            raise UsageError(f"the sizes '{item}' must ascend and lie between 1 and {_LARGEST}")
        sizes.update(range(low, high + 1))
    return tuple(sorted(sizes))


def sweep(
    bench: Bench, kernels: Sequence[Kernel], sizes: Sequence[int] | None, policy: str, limit: int | None
) -> list[Sweep]:
    """Measure each kernel at these mini-batch sizes, or at the policy's sizes if `sizes` is None.

    The parts of a division have swept sizes or powers of two, which are measured too.
    """
    swept = {kernel: sizes or micro_batch_sizes(policy, kernel.mini_batch) for kernel in kernels}
    slices = {
        kernel: sorted({*own, *usable_sizes("power_of_two", kernel.at(max(own)))})
        for kernel, own in swept.items()
    }
    measured = [kernel.at(size) for kernel, own in slices.items() for size in own]
    benchmark(bench, measured, "undivided")
    costs = bench.costs(kernels)
    results = []
    for kernel in kernels:
        rows = [row for row in costs.measurements[kernel] if row.micro_batch in slices[kernel]]
        points = [_make_point(kernel.at(size), rows, limit) for size in swept[kernel]]
        results.append(Sweep(kernel, limit, tuple(points)))
    return results


def find_cliffs(points: Sequence[SweepPoint]) -> list[Cliff]:
    """Return the sizes at which the time per sample jumps; the sizes of `points` ascend.

    A size is a cliff if the lower quartile of its time per sample exceeds, by the factor JUMP, both the time
    of the size before it and the median of up to NEIGHBOURS sizes before it. The first condition keeps the
    size after a cliff from being a cliff too; the second keeps an unusually fast size from making the next a
    cliff. A size at which no undivided algorithm fits counts as infinitely slow.
    """
    cliffs = []
    for index in range(1, len(points)):
        neighbours = points[max(0, index - NEIGHBOURS) : index]
        before = [point.per_sample for point in neighbours if point.per_sample is not None]
        here, last = points[index].least_per_sample, points[index - 1].per_sample
        if last is not None and (here is None or here > JUMP * max(last, statistics.median(before))):
            cliffs.append(Cliff(points[index - 1], points[index]))
    return cliffs


def _make_point(kernel: Kernel, rows: Sequence[Measurement], limit: int | None) -> SweepPoint:
    size = kernel.mini_batch
    whole = {row.algorithm: row for row in rows if row.micro_batch == size}
    undivided = fastest_configuration(list(whole.values()), kernel, limit)
    return SweepPoint(
        size,
        undivided,
        fastest_configuration([row for row in rows if row.micro_batch <= size], kernel, limit),
        (whole[undivided.parts[0].algorithm].spread_ms or 0.0) if undivided else 0.0,
    )
