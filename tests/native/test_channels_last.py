"""Convolutions in NHWC, whose columns are gathered by lines of taps."""

import pytest
from guarded_tensors import assert_keeps_to_its_tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import PASSES, CheckedKernel, assert_each_algorithm_is_right

from mucudnn._native import Engine, Problem
from mucudnn.problems.kernels import Kernel


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    """Draw images and volumes whose lines of taps are shorter and longer than a vector."""
    depth = draw(st.sampled_from((0, 0, 3)))
    dims = 3 if depth else 2
    sizes = st.integers(1, 4)
    return Problem(
        mini_batch=draw(st.integers(1, 2)),
        in_channels=draw(st.sampled_from((1, 3, 7, 20, 66))),
        out_channels=draw(st.sampled_from((1, 4, 18, 64))),
        input=((depth,) if depth else ()) + (draw(st.integers(7, 9)), draw(st.integers(7, 12))),
        kernel=(*((draw(st.integers(1, 3)),) if depth else ()), draw(sizes), draw(sizes)),
        stride=tuple(draw(st.integers(1, 3)) for _ in range(dims)),
        padding=tuple(draw(st.integers(0, 3)) for _ in range(dims)),
        dilation=draw(st.sampled_from((1, 1, 2))) if not depth else 1,
        layout="nhwc",
        data_type=draw(st.sampled_from(("f32", "f32", "bf16", "f16", "f64"))),
    )


@settings(max_examples=150)
@given(problem=problems(), pass_=st.sampled_from(PASSES), beta=st.sampled_from([0.0, 0.5]))
def test_a_convolution_in_nhwc_agrees_with_the_definition(
    engine: Engine, problem: Problem, pass_: str, beta: float
) -> None:
    assert_each_algorithm_is_right(CheckedKernel(engine, Kernel(problem, pass_)), 1.0, beta)


@pytest.mark.parametrize("at_end", [True, False])
@settings(max_examples=60)
@given(problem=problems(), pass_=st.sampled_from(PASSES))
def test_a_convolution_in_nhwc_reads_and_writes_no_byte_outside_its_tensors(
    engine: Engine, at_end: bool, problem: Problem, pass_: str
) -> None:
    algorithm = "IMPLICIT_GEMM" if pass_ == "forward" else "ALGO_1"
    assert_keeps_to_its_tensors(engine, problem, pass_, algorithm, beta=0.5, at_end=at_end)
