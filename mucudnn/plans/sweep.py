"""Sweeps: a kernel's time at many mini-batch sizes, undivided and divided, and the cliffs where it jumps."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mucudnn.costs.records import Measurement
from mucudnn.errors import UsageError
from mucudnn.forks import no_fork
from mucudnn.measuring.bench import Bench
from mucudnn.measuring.benchmark import benchmark
from mucudnn.measuring.intervals import UNDECIDED, name_side
from mucudnn.plans.decide import fastest_configuration
from mucudnn.plans.parts.channels import measure_groups
from mucudnn.plans.parts.parts import faster_groups
from mucudnn.problems.kernels import Kernel
from mucudnn.problems.policies import micro_batch_sizes, usable_sizes
from mucudnn.solver import ChannelGroups, Configuration

JUMP = 1.3
NEIGHBOURS = 3
_PARTS = "power_of_two"  # the sizes of a division's parts, beside the swept ones
_LARGEST = 2**16


@dataclass(frozen=True)
class SweepPoint:
    """A mini-batch size with the best undivided algorithm and the best division within the limit.

    A division is of the mini-batch, or of the channels if that is predicted to be faster. Either is None
    where nothing fits the limit. `is_busy` says that the undivided algorithm was never measured without
    disturbance.
    """

    mini_batch: int
    undivided: Configuration | None
    divided: Configuration | ChannelGroups | None
    is_busy: bool = False

    @property
    def per_sample(self) -> float | None:
        """Milliseconds of one sample, undivided."""
        return None if self.undivided is None else self.undivided.time_ms / self.mini_batch

    @property
    def divided_per_sample(self) -> float | None:
        """Milliseconds of one sample, divided."""
        return None if self.divided is None else self.divided.time_ms / self.mini_batch


@dataclass(frozen=True)
class Cliff:
    """A size at which the time per sample jumps, and the size swept before it.

    It `is_undecided` if repeated runs leave that open, or if other programs disturbed one of both times.
    """

    before: SweepPoint
    point: SweepPoint
    is_undecided: bool = False


@dataclass(frozen=True)
class Sweep:
    """One kernel at several mini-batch sizes, ascending."""

    kernel: Kernel
    limit: int | None
    points: tuple[SweepPoint, ...]
    cliffs: tuple[Cliff, ...]


def parse_sizes(text: str) -> tuple[int, ...]:
    """Parse mini-batch sizes such as `1-64`, `8,16,32` or `1-8,16`, and return them in ascending order.

    Return none for `powers`. Raises UsageError.
    """
    if text == "powers":
        return ()
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


def sweep(bench: Bench, kernels: Sequence[Kernel], sizes: Sequence[int], limit: int | None) -> list[Sweep]:
    """Measure each kernel at these mini-batch sizes, or at powers of two and its own if there are none.

    The parts of a division have swept sizes or powers of two, which are measured too.
    """
    swept = {kernel: sizes or micro_batch_sizes(_PARTS, kernel.mini_batch) for kernel in kernels}
    slices = {
        kernel: sorted({*own, *usable_sizes(_PARTS, kernel.at(max(own)))}) for kernel, own in swept.items()
    }
    measured = [kernel.at(size) for kernel, own in slices.items() for size in own]
    benchmark(bench, measured, "undivided")
    if limit is not None and bench.runner.measures:
        whole = [kernel.at(size) for kernel, own in swept.items() for size in own]
        measure_groups(bench, dict.fromkeys(whole, limit), _PARTS)
    results = []
    for kernel, own in swept.items():
        rows = [m for m in bench.costs([kernel]).measurements[kernel] if m.micro_batch in slices[kernel]]
        points = tuple(_make_point(bench, kernel.at(size), rows, limit) for size in own)
        cliffs = tuple(seen for cliff in find_cliffs(points) if (seen := _remeasure(bench, kernel, cliff)))
        results.append(Sweep(kernel, limit, points, cliffs))
    return results


def _remeasure(bench: Bench, kernel: Kernel, cliff: Cliff) -> Cliff | None:
    """Return a cliff as repeated runs at both sizes show it, or None if they show none.

    A replay runs nothing, so recorded times that other programs did not disturb decide.
    """
    ends = cliff.before, cliff.point
    side = UNDECIDED if any(point.is_busy for point in ends) else "above"
    if bench.runner.measures and cliff.point.undivided is not None:
        with no_fork:
            from mucudnn.measuring.compare import REPEATS, run_interleaved  # it imports numpy

        (before,), (here,) = (
            run_interleaved(bench.engine, kernel.at(end.mini_batch), [end.undivided], REPEATS).times_ms
            for end in ends
            if end.undivided
        )
        grown = cliff.point.mini_batch / cliff.before.mini_batch
        side = name_side([b / a / grown for a, b in zip(before, here, strict=False)], JUMP)
    return None if side == "below" else replace(cliff, is_undecided=side == UNDECIDED)


def find_cliffs(points: Sequence[SweepPoint]) -> list[Cliff]:
    """Return the sizes at which the time per sample jumps; the sizes of `points` ascend.

    A size is a cliff if its time per sample exceeds, by the factor JUMP, both the time of the size
    before it and the median of up to NEIGHBOURS sizes before it. The first condition keeps the
    size after a cliff from being a cliff too; the second keeps an unusually fast size from making the next a
    cliff. A size at which no undivided algorithm fits counts as infinitely slow.
    """
    with no_fork:
        from statistics import median  # a decision without a sweep need not wait for its import

    cliffs = []
    for index in range(1, len(points)):
        neighbours = points[max(0, index - NEIGHBOURS) : index]
        before = [point.per_sample for point in neighbours if point.per_sample is not None]
        here, last = points[index].per_sample, points[index - 1].per_sample
        if last is not None and (here is None or here > JUMP * max(last, median(before))):
            cliffs.append(Cliff(points[index - 1], points[index]))
    return cliffs


def _make_point(bench: Bench, kernel: Kernel, rows: Sequence[Measurement], limit: int | None) -> SweepPoint:
    size = kernel.mini_batch
    whole = {row.algorithm: row for row in rows if row.is_undivided(size)}
    undivided = fastest_configuration(list(whole.values()), kernel, limit)
    divided = fastest_configuration([row for row in rows if row.micro_batch <= size], kernel, limit)
    return SweepPoint(
        size,
        undivided,
        faster_groups(bench, kernel, _PARTS, limit, divided, run=False) or divided,
        undivided is not None and whole[undivided.parts[0].algorithm].busy_tries > 0,
    )
