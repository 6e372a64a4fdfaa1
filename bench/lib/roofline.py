"""The least time that a convolution needs: its multiplications and its bytes at measured peaks."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from bench.lib.record import Record
from mucudnn._native import Problem

WORST = 1.5  # a row above it must be explained


@dataclass(frozen=True)
class Peaks:
    """The most that the machine was seen to do: GFLOP/s of a large product, and GB/s of a large copy."""

    gflops: float
    gigabytes: float


def multiplications(problem: Problem) -> int:
    """Return the multiplications of a direct convolution, without those of padding. All passes have as many.

    Winograd and FFT need fewer, and a matrix product also multiplies padding.
    """
    p = problem
    inside = (_positions_inside(p, axis) for axis in range(p.dims))
    return p.mini_batch * p.out_channels * (p.in_channels // p.groups) * prod(inside)


def _positions_inside(p: Problem, axis: int) -> int:
    """Return how many pairs of an output position and a tap read inside the input."""
    reads = (
        position * p.stride[axis] - p.padding[axis] + tap * p.dilation[axis]
        for position in range(p.output[axis])
        for tap in range(p.kernel[axis])
    )
    return sum(0 <= at < p.input[axis] for at in reads)


def moved_bytes(problem: Problem) -> int:
    """Return the bytes of x, w and y, each moved once."""
    p = problem
    return (p.x_elements + p.w_elements) * p.element_size + p.y_elements * p.y_element_size


def least_times(problem: Problem, peaks: Peaks) -> dict[str, float]:
    """Return the ms that the arithmetic takes at the machine's peak, and those that the memory takes."""
    return {
        "arithmetic_ms": 2 * multiplications(problem) / peaks.gflops / 1e6,
        "memory_ms": moved_bytes(problem) / peaks.gigabytes / 1e6,
    }


def explain(record: Record) -> str:
    """Return a row's times beside the least ones."""
    details = record.details
    bound = "arithmetic" if details["arithmetic_ms"] >= details["memory_ms"] else "memory"
    share = details[f"{bound}_ms"] / details["ms"]
    return (
        f"{record.case}: ours {details['ms']:.3g} ms, stock {details['stock_ms']:.3g} ms; at the machine's "
        f"peak the arithmetic takes {details['arithmetic_ms']:.3g} ms and the memory "
        f"{details['memory_ms']:.3g} ms. Ours reaches {share:.0%} of the {bound}'s peak"
    )


def explanations(records: list[Record]) -> list[str]:
    """Return the explanations of the rows above `WORST`, the worst first."""
    worst = sorted((r for r in records if (r.value or 0) > WORST), key=lambda r: -(r.value or 0))
    return list(map(explain, worst))
