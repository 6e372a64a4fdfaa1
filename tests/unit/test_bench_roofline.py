"""A kernel's least time counts its multiplications inside the input, and each byte once."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.lib.record import Record
from bench.lib.roofline import Peaks, explanations, least_times, moved_bytes, multiplications
from mucudnn._native import Problem


def problem(**changes: object) -> Problem:
    return Problem(
        **{"mini_batch": 2, "in_channels": 4, "out_channels": 6, "input": (7, 9), "kernel": (3, 3), **changes}  # type: ignore[arg-type]
    )


@given(stride=st.integers(1, 3), padding=st.integers(0, 4), dilation=st.integers(1, 3))
def test_multiplications_are_those_of_a_convolution_of_ones(stride: int, padding: int, dilation: int) -> None:
    p = problem(stride=stride, padding=padding, dilation=dilation, groups=2)
    padded = np.pad(np.ones(p.input), padding)
    ones = 0
    for row in range(p.output[0]):
        for column in range(p.output[1]):
            taps = padded[row * stride :: dilation, column * stride :: dilation][:3, :3]
            ones += int(taps.sum())
    assert multiplications(p) == ones * 2 * 6 * 4 // 2


def test_without_padding_they_are_half_of_the_problems_operations() -> None:
    p = problem()
    assert 2 * multiplications(p) == p.flops


def test_each_byte_moves_once() -> None:
    p = problem(data_type="bf16")
    assert moved_bytes(p) == 2 * (2 * 4 * 63 + 6 * 4 * 9 + 2 * 6 * 35)


def test_the_least_times_are_those_at_the_peaks() -> None:
    p = problem()
    assert least_times(p, Peaks(gflops=2.0, gigabytes=4.0)) == {
        "arithmetic_ms": pytest.approx(multiplications(p) / 1e6),
        "memory_ms": pytest.approx(moved_bytes(p) / 4e6),
    }


def test_rows_above_one_and_a_half_are_explained_worst_first() -> None:
    details = {"ms": 10.0, "stock_ms": 5.0, "arithmetic_ms": 4.0, "memory_ms": 0.1}
    rows = [
        Record("kernels", name, "", value, "ratio", found)
        for name, value, found in (
            ("a", 1.6, details), ("b", 1.4, details), ("c", 2.0, details | {"memory_ms": 5.0}),
        )
    ]  # fmt: skip
    first, second = explanations(rows)
    assert first.startswith("c: ours 10 ms, stock 5 ms")
    assert first.endswith("Ours reaches 50% of the memory's peak")
    assert second.endswith(
        "the arithmetic takes 4 ms and the memory 0.1 ms. Ours reaches 40% of the arithmetic's peak"
    )
