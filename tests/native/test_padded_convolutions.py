"""Convolutions with much padding: their products leave out the taps that read padding alone."""

import numpy as np
import pytest
from reference import PASSES, CheckedKernel, assert_each_algorithm_is_right

from mucudnn._native import Engine, Problem, host_library
from mucudnn.problems.kernels import Kernel

each_pass = pytest.mark.parametrize("pass_", PASSES)
each_layout = pytest.mark.parametrize("layout", ["nchw", "nhwc"])


def dilated(**changes: object) -> Problem:
    """Return a 3×3 whose outer taps each read padding at about half of the positions, in both directions."""
    sizes = {"mini_batch": 2, "in_channels": 140, "out_channels": 140, "input": (28, 26), "padding": 12}
    return Problem(**{**sizes, "kernel": (3, 3), "dilation": 12, **changes})  # type: ignore[arg-type]


@each_layout
@each_pass
def test_parts_on_several_threads_are_right(layout: str, pass_: str) -> None:
    checked = CheckedKernel(Engine(host_library(), threads=3), Kernel(dilated(layout=layout), pass_))
    assert_each_algorithm_is_right(checked, 1.0, 0.0)


@pytest.mark.parametrize(("pass_", "explicit"), [("forward", "GEMM"), ("backward_data", "ALGO_0")])
def test_the_columns_of_explicit_gemm_hold_no_tap_that_reads_padding_alone(
    engine: Engine, pass_: str, explicit: str
) -> None:
    padded, inner = dilated(), dilated(dilation=1, padding=1)  # the same sizes of x and y
    with_padding, without = (
        next(c.workspace for c in engine.enumerate(Kernel(p, pass_)) if c.algorithm == explicit)
        for p in (padded, inner)
    )
    assert with_padding < without / 2


@each_pass
def test_a_tap_that_reads_padding_everywhere_gives_zeros(engine: Engine, pass_: str) -> None:
    problem = dilated(input=(9, 9))  # the dilation exceeds the image: the middle tap alone reads it
    checked = CheckedKernel(engine, Kernel(problem, pass_))
    assert_each_algorithm_is_right(checked, 1.0, 0.0)
    if pass_ == "backward_filter":
        middle = checked.run([(2, "ALGO_1")])[:, :, 1, 1]
        assert np.count_nonzero(checked.run([(2, "ALGO_1")])) == np.count_nonzero(middle) > 0
