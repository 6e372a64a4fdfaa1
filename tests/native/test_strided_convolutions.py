"""Convolutions of stride 2, whose columns are gathered a vector at a time."""

import pytest
from guarded_tensors import assert_keeps_to_its_tensors
from hypothesis import given, settings
from hypothesis import strategies as st
from reference import PASSES, CheckedKernel, assert_each_algorithm_is_right

from mucudnn._native import Engine, Problem
from mucudnn.problems.kernels import Kernel


@st.composite
def wide_problems(draw: st.DrawFn) -> Problem:
    """Draw images and volumes whose lines are shorter and longer than two vectors."""
    depth = draw(st.sampled_from(((), (3,))))
    return Problem(
        mini_batch=draw(st.integers(1, 3)),
        in_channels=draw(st.integers(1, 3)),
        out_channels=draw(st.integers(1, 4)),
        input=(*depth, draw(st.integers(3, 6)), draw(st.integers(3, 90))),
        kernel=(*depth, 3, draw(st.integers(1, 3))),
        stride=(*(1 for _ in depth), draw(st.integers(1, 2)), draw(st.integers(2, 3))),
        padding=draw(st.integers(0, 2)),
    )


@settings(max_examples=100)
@given(problem=wide_problems(), pass_=st.sampled_from(PASSES), beta=st.sampled_from([0.0, 0.5]))
def test_a_strided_convolution_agrees_with_the_definition(
    engine: Engine, problem: Problem, pass_: str, beta: float
) -> None:
    assert_each_algorithm_is_right(CheckedKernel(engine, Kernel(problem, pass_)), 1.0, beta)


@pytest.mark.parametrize("at_end", [True, False])
@settings(max_examples=60)
@given(problem=wide_problems(), pass_=st.sampled_from(PASSES))
def test_a_strided_convolution_reads_and_writes_no_byte_outside_its_tensors(
    engine: Engine, at_end: bool, problem: Problem, pass_: str
) -> None:
    algorithm = "IMPLICIT_GEMM" if pass_ == "forward" else "ALGO_1"
    assert_keeps_to_its_tensors(engine, problem, pass_, algorithm, beta=0.5, at_end=at_end)
